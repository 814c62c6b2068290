"""Records of random problems by each template of a kind of machine, for fits of its model.

A problem of a template is measured in the default configuration, in others that the model takes for worth a trial, and
in as many that are legal, drawn at random. Other templates that take the problem are measured in a few configurations.
A line of the file is that of a tuning log, of a GPU with the number of kernels, the clock in MHz, and the resources of
the kernel with the most code: registers and bytes of local memory of a thread, and bytes of code. The same command goes
on where it was ended. On a CPU nothing else may run: a program that uses one core for a moment doubles the times of
kernels of all cores.
"""

from __future__ import annotations

import json
import logging
import struct
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import msgspec
import tvm
from script import options_of

from tvmconv import autotvm
from tvmconv.autotvm.measure.protocol import BuildResult
from tvmconv.calibration.problems import LARGE, SMALL
from tvmconv.calibration.steadiness import Clock
from tvmconv.calibration.trials import key_of, keys_in, trials
from tvmconv.dispatch import algorithms_on
from tvmconv.dispatch.record import Record
from tvmconv.dispatch.trial import MeasureInput
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import backend_of, resolve_target

FEW = 3
"""The number of configurations of a template for a problem that was drawn for another template."""


class Builder(autotvm.LocalBuilder):
    """A builder that keeps what the machine code of each trial tells."""

    def __init__(self) -> None:
        super().__init__()
        self.code = dict[MeasureInput, dict[str, int]]()

    def build(self, trial: MeasureInput) -> Future[BuildResult]:
        future = super().build(trial)

        def keep(done: Future[BuildResult]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().kernels:
                self.code[trial] = code_of([Path(path).read_bytes() for path in done.result().kernels])

        future.add_done_callback(keep)
        return future


def code_of(images: list[bytes]) -> dict[str, int]:
    """Return the number of kernels in some cubins, and the resources of the kernel with the most code."""
    kernels = [kernel for image in images for kernel in kernels_of(image)]
    most = max(kernels, key=lambda each: each["code_bytes"])
    return {"kernels": len(kernels), **most}


def kernels_of(image: bytes) -> list[dict[str, int]]:
    """Return the resources of each kernel in a cubin, which is an ELF file.

    `.nv.info` has entries of a format and an attribute (one byte each), a size and as many bytes: 0x2f is the number of
    registers of a symbol, 0x11 its bytes of local memory.
    """
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + size * number) for number in range(count)]

    def text(table: int, offset: int) -> str:
        begin = headers[table][4] + offset
        return image[begin : image.index(b"\0", begin)].decode()

    sections = {text(names, header[0]): header for header in headers}
    symbols = sections[".symtab"]
    found = dict[str, dict[str, int]]()
    for name, header in sections.items():
        if name.startswith(".text."):
            found[name.removeprefix(".text.")] = {"registers": 0, "local_bytes": 0, "code_bytes": header[5]}
    offset, end = sections[".nv.info"][4], sections[".nv.info"][4] + sections[".nv.info"][5]
    while offset < end:
        form, attribute, length = struct.unpack_from("<BBH", image, offset)
        if form == 4 and attribute in (0x2F, 0x11):
            symbol, value = struct.unpack_from("<II", image, offset + 4)
            (name_at,) = struct.unpack_from("<I", image, symbols[4] + 24 * symbol)
            kernel = found.get(text(symbols[6], name_at))
            if kernel is not None:
                kernel["registers" if attribute == 0x2F else "local_bytes"] = value
        offset += 4 + (length if form == 4 else 0)
    return [*found.values()]


def algorithms_of(target: tvm.target.Target) -> list[str]:
    """Return the algorithms of a target, with those that fuse more than a convolution."""
    return [*algorithms_on(target), *(("attention", "gate") if backend_of(target).on_gpu else ())]


def write_records(wanted: Iterable[MeasureInput], output: Path, seconds: float) -> None:
    """Measure trials, but those that the file has, for a number of seconds, and add their lines to the file."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    done, builder = keys_in(output), Builder()
    option = autotvm.measure_option(builder, autotvm.LocalRunner(number=5, repeat=6, min_repeat_ms=4))
    end, count, failures = time.time() + seconds, 0, Counter[str]()
    try:
        with output.open("a") as file, closing(Clock()) as clock:
            others = (trial for trial in wanted if key_of(trial) not in done)
            for trial, result in option.measure(others, lambda trial: None, lambda: time.time() > end):
                row = msgspec.to_builtins(Record.of(trial, result))
                row |= {"code": builder.code.pop(trial, None), "clock_mhz": clock.mhz}
                print(json.dumps(row, separators=(",", ":")), file=file, flush=True)
                count += 1
                if result.reason:
                    failures[f"{trial.task.name}: {result.status.value}, {result.reason[:100]}"] += 1
                if count % 100 == 0:
                    print(f"{count} trials, of which {sum(failures.values())} failed: {trial.task}", flush=True)
    finally:
        option.close()
        for text, number in failures.most_common():
            print(number, text)


def main() -> None:
    defaults = {"algorithms": (), "target": "cuda", "problems": 12, "configs": 12, "seed": 0, "seconds": 1e9}
    options = options_of(__doc__, **defaults).parse_args()
    target = resolve_target(options.target)
    known = algorithms_of(target)
    algorithms = options.algorithms or known
    if unknown := [name for name in algorithms if name not in known]:
        raise InvalidArgumentError("algorithms", unknown[0], f"algorithms of {target.kind}: {', '.join(known)}")
    size = LARGE if backend_of(target).on_gpu else SMALL
    wanted = trials(algorithms, options.problems, options.configs, options.seed, target, size, FEW)
    write_records(wanted, options.output, options.seconds)


if __name__ == "__main__":
    main()
