"""Records of random problems by each of CUDA's templates, for fits of the model of a GPU.

A problem of a template is measured in the default configuration, in others that the model takes for worth a trial, and
in as many that are legal, drawn at random. Other templates that take the problem are measured in a few configurations.
A line of the file is that of a tuning log, with the number of kernels, the clock of the GPU in MHz, and the resources
of the kernel with the most code: registers and bytes of local memory of a thread, and bytes of code. The same command
goes on where it was ended.
"""

from __future__ import annotations

import json
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
from script import options_of

from tvmconv import autotvm
from tvmconv.autotvm.measure.protocol import BuildResult
from tvmconv.autotvm.task import ConvTask
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for, algorithms_on
from tvmconv.dispatch.record import Record, load_from_file
from tvmconv.dispatch.trial import MeasureInput
from tvmconv.problem import DIRECTIONS, FORWARD, Problem, Workload, problem_of
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError, NoValidConfigurationError
from tvmconv.problem.fused.attention import Attention
from tvmconv.problem.fused.gate import Gate
from tvmconv.problem.layout import Place
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import resolve_target

LEAST_BYTES, MOST_BYTES = 2**18, 2**27
"""The least and the most bytes of the operands of a problem."""

MOST_FLOPS = 2**36
"""The most floating-point operations of a problem; one in float32 without TF32 has an eighth of them at most."""

MOST_NONZEROS = 2**15
"""The most non-zeros of a weight that is compiled in: kernels with more take half a minute to compile."""

FEW = 3
"""The number of configurations of a template for a problem that was drawn for another template."""

TURNS = 20_000
"""The most draws for a problem, and for all random configurations of a problem together."""

BATCHES = (1, 1, 8, 32, 32, 128)

DTYPES = ("float32", "float32", "float32", "float16", "float16", "float16", "bfloat16", "int8")


def convolution(draw: Draw, inputs: int, outputs: int, kernel: int, most_side: int, groups: int = 1) -> ConvWorkload:
    """Return a convolution of a number of channels of each group, with random planes, stride, type and layouts."""
    dtype, last = draw.of(DTYPES), draw.chance(1 / 2)
    height = draw.logarithmic(min(4, most_side), most_side)
    width = height if draw.chance(2 / 3) else draw.logarithmic(min(4, most_side), most_side)
    workload = ConvWorkload.conv2d(
        (draw.of(BATCHES), groups * inputs, height, width),
        (groups * outputs, inputs, kernel, kernel),
        stride=2 if draw.chance(1 / 4) else 1,
        dilation=2 if kernel > 1 and draw.chance(1 / 10) else 1,
        groups=groups,
        dtype=dtype,
        shift=True,
        scale=dtype == "int8",
        activation="relu",
        out_dtype=dtype,
    )
    if not last:
        return workload
    layouts = {"layout": "NHWC", "out_layout": "NHWC"}
    return msgspec.structs.replace(workload, w_layout="KCRS" if workload.is_depthwise else "KRSC", **layouts)


def dense(draw: Draw) -> ConvWorkload:
    return convolution(draw, *(8 * draw.logarithmic(2, 128) for _ in range(2)), draw.of((1, 1, 3, 3, 3, 5)), 112)


def square(draw: Draw) -> ConvWorkload:
    """Return a 3x3 convolution."""
    return convolution(draw, *(8 * draw.logarithmic(4, 64) for _ in range(2)), 3, 112)


def linear(draw: Draw) -> ConvWorkload:
    workload = convolution(draw, *(8 * draw.logarithmic(8, 512) for _ in range(2)), 1, 1)
    return msgspec.structs.replace(workload, batch=draw.of((1, 1, 2, 4, 8, 32, 128, 1024, 4096)))


def shallow(draw: Draw) -> ConvWorkload:
    return convolution(draw, draw.of((1, 2, 3, 3, 3, 4)), 4 * draw.logarithmic(2, 24), draw.of((3, 3, 5, 7, 7)), 256)


def grouped(draw: Draw) -> ConvWorkload:
    groups, channels = draw.of((2, 4, 8, 16, 32)), draw.of((4, 8, 8, 16, 16, 24, 32, 64))
    return convolution(draw, channels, channels * draw.of((1, 1, 1, 2)), draw.of((1, 3, 3, 3, 5)), 64, groups)


def depthwise(draw: Draw) -> ConvWorkload:
    kernel = draw.of((3, 3, 3, 5, 5, 7, 7, 9, 13, 21, 31))
    return convolution(draw, 1, 1 if draw.chance(7 / 8) else 2, kernel, 128, 8 * draw.logarithmic(2, 128))


def gradient(draw: Draw) -> ConvWorkload:
    workload = depthwise(draw)
    if workload.dtype == "int8":
        raise InvalidArgumentError("dtype", "int8", "a type of gradients")
    return msgspec.structs.replace(workload.without_epilogue(), out_dtype=msgspec.UNSET)


def attention(draw: Draw) -> Workload:
    matrices, depth, dtype = draw.of((8, 12, 16, 96, 384)), draw.of((32, 64, 64, 80, 128)), draw.of(DTYPES[:-1])
    queries, keys = (draw.of((49, 50, 64, 197, 256, 577, 1024, 2048)) for _ in range(2))
    keys = queries if draw.chance(3 / 4) else keys
    rows = (Place.alone(matrices, count, depth) for count in (queries, keys, keys, queries))
    return Attention(matrices, depth, depth, dtype, dtype, depth**-0.5, *rows)


def gate(draw: Draw) -> Workload:
    batch, channels, dtype = draw.of((1, 1, 8, 32, 128)), 8 * draw.logarithmic(4, 256), draw.of(DTYPES[:-1])
    squeezed = max(4, channels // draw.of((4, 8, 16, 24)))
    layers = ((channels, squeezed, "silu"), (squeezed, channels, "sigmoid"))
    return Gate(
        *(
            ConvWorkload.conv2d(
                (batch, inputs, 1, 1), (outputs, inputs, 1, 1), dtype=dtype, shift=True, activation=function
            )
            for inputs, outputs, function in layers
        )
    )


KINDS: dict[str, Callable[[Draw], Workload]] = {
    "attention": attention,
    "gate": gate,
    "grouped": grouped,
    "linear": linear,
    "matvec": linear,
    "shallow": shallow,
    "winograd": square,
    **dict.fromkeys(("depthwise", "depthwise_bands", "depthwise_nhwc", "depthwise_planes"), depthwise),
    **dict.fromkeys(("direct", "im2win", "sparse", "tensor"), dense),
}
"""The function that draws workloads for each template; gradients draw by `gradient`."""


def random_problem(draw: Draw, algorithm: str, target: Any) -> Problem | None:
    """Return a problem that an algorithm takes; None where none of many draws is one."""
    for _ in range(TURNS):
        try:
            workload = KINDS.get(algorithm, gradient)(draw)
        except InvalidArgumentError:
            continue
        direction = FORWARD if algorithm in KINDS else draw.of(DIRECTIONS[1:])
        sparsity = 1 - draw.of((0.05, 0.1, 0.2, 0.5)) if algorithm == "sparse" else None
        word = "tf32" if workload.dtype == "float32" and draw.chance(1 / 2) and sparsity is None else "float32"
        if algorithm == "sparse" and (workload.dtype == "int8" or workload.layout == "NHWC"):
            continue
        if sparsity is not None:
            workload = workload.without_scale()
            if prod(workload.w_shape) * (1 - sparsity) > MOST_NONZEROS:
                continue
        if workload.flops > (MOST_FLOPS if workload.dtype != "float32" or word == "tf32" else MOST_FLOPS / 8):
            continue
        moved = sum(prod(shape) * STORAGE_TYPES[dtype].itemsize for shape, dtype in workload.operands.values())
        if not LEAST_BYTES <= moved <= MOST_BYTES:
            continue
        problem = problem_of(workload, sparsity, word, direction)
        if problem.is_gradient:
            problem = problem.as_convolution
        if algorithm in algorithms_for(problem, target):
            return problem
    return None


def configurations(task: ConvTask, count: int, draw: Draw) -> list[Any]:
    """Return the default configuration, some of the space, and as many legal ones: `count` in all where there are."""
    template, space = task.template, task.space
    found = dict.fromkeys([space.default])
    for _ in range(10 * count):
        if len(found) < (count + 1) // 2:
            found.setdefault(draw.of(space.configs))
    for _ in range(TURNS):
        if len(found) >= count:
            break
        config = type(space.default)(**{name: draw.of(values) for name, values in space.knobs.items()})
        if template.is_legal(task.problem, config, task.target):
            found.setdefault(config)
    return [*found]


def trials(algorithms: list[str], problems: int, configs: int, seed: int, target: Any) -> Iterator[MeasureInput]:
    """Yield trials of each algorithm for a number of problems, one problem of each after the other."""
    for number in range(problems):
        for algorithm in algorithms:
            draw = Draw(f"{seed} {algorithm} {number}")
            problem = random_problem(draw, algorithm, target)
            if problem is None:
                print(f"{algorithm} takes none of {TURNS} problems", flush=True)
                continue
            others = [each for each in algorithms_for(problem, target) if each not in (algorithm, "sparse")]
            for taker in (algorithm, *(() if problem.sparsity else others)):
                task = ConvTask(problem.workload, target, algorithm=taker if problem.sparsity is None else "auto")
                task = task.for_problem(problem)
                try:
                    found = configurations(task, configs if taker == algorithm else FEW, draw)
                except NoValidConfigurationError as error:
                    print(error, flush=True)
                    continue
                for config in found:
                    yield MeasureInput(target, task, config)


class Builder(autotvm.LocalBuilder):
    """A builder that keeps what the machine code of each trial tells."""

    def __init__(self) -> None:
        super().__init__()
        self.code = dict[MeasureInput, dict[str, int]]()

    def build(self, trial: MeasureInput) -> Future[BuildResult]:
        future = super().build(trial)

        def keep(done: Future[BuildResult]) -> None:
            if not done.cancelled() and done.exception() is None:
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


class Clock:
    """The clock of the first GPU in MHz, which a process reads five times a second; 0 where it is not known."""

    COMMAND = "nvidia-smi --query-gpu=clocks.sm --format=csv,noheader,nounits -i 0 -lms 200"

    def __init__(self) -> None:
        self.mhz = 0
        Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        with subprocess.Popen(self.COMMAND.split(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.mhz = int(line) if line.strip().isdigit() else 0


def main() -> None:
    defaults = {"algorithms": (), "problems": 12, "configs": 12, "seed": 0, "seconds": 1e9}
    options = options_of(__doc__, **defaults).parse_args()
    target = resolve_target("cuda")
    known = [*algorithms_on(target), "attention", "gate"]
    algorithms = options.algorithms or known
    if unknown := [name for name in algorithms if name not in known]:
        raise InvalidArgumentError("algorithms", unknown[0], f"algorithms of CUDA: {', '.join(known)}")
    done = measured(options.output)
    wanted = trials(algorithms, options.problems, options.configs, options.seed, target)
    clock, builder = Clock(), Builder()
    option = autotvm.measure_option(builder, autotvm.LocalRunner(number=5, repeat=3, min_repeat_ms=4))
    end, count, failures = time.time() + options.seconds, 0, Counter[str]()
    try:
        with options.output.open("a") as file:
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


def key_of(trial: MeasureInput) -> tuple[str, str]:
    """Return what tells a trial from others, as text."""
    return f"{trial.task} on {trial.target}", json.dumps(trial.task.knobs(trial.config), sort_keys=True)


def measured(path: Path) -> set[tuple[str, str]]:
    """Return the keys of the trials in a file of records."""
    if not path.exists():
        return set()
    records = load_from_file(path).records
    keys = (f"{record.problem} by {record.template} on {record.target}" for record in records)
    return {(key, json.dumps(record.knobs, sort_keys=True)) for key, record in zip(keys, records, strict=True)}


if __name__ == "__main__":
    main()
