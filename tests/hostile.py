"""Damaged models and logs, for as long as one likes: `python -m tests.hostile --seconds 60 --seed 0`.

tvmconv has to answer them by a `TvmconvError` or a right result. A file is kept until that is known, so that one that
ends the process stays; its name says how to make it again.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import onnx

import tvmconv
from tests.shared import templates_of_tests  # noqa: F401 (it defines a template)
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload, TvmconvError, autotvm
from tvmconv.autotvm import record
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.templates import create_task
from tvmconv.autotvm.tidy import compacted, merged, pruned
from tvmconv.bench.html.files import read
from tvmconv.bench.html.page import page
from tvmconv.checking.verify import compare, run_onnxruntime
from tvmconv.targets import device_facts
from tvmconv.testing import check_result, random_operands

MEMORY = 12 * 2**30
EXTREMES = (0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**32 + 1, 2**62, 2**63 - 1, -(2**63))
NAMES = ("", "x", "y", "Conv", "\x00", "v0")

SMALL = 2**20
"""The largest number of elements in an input for which a network is run."""


def models() -> list[bytes]:
    """Return small networks with constructs that tvmconv handles in its own way."""
    plain = Graph((1, 4, 9, 9))
    dense = plain.conv("x", (8, 4, 3, 3), pads=[1] * 4, strides=[2, 2])
    tail = Graph((1, 4, 8, 8))
    shifted = tail.node("Add", tail.conv("x", (4, 1, 3, 3), group=4, pads=[1] * 4), tail.random(1, 4, 1, 1))
    summed = tail.node("Add", tail.node("Relu", shifted), "x")
    clipped = tail.node("Clip", summed, tail.random(), tail.random())
    return [
        plain.model(plain.node("Relu", plain.conv(dense, (8, 1, 3, 3), group=8, dilations=[1, 2]))).SerializeToString(),
        tail.model(tail.node("MaxPool", clipped, kernel_shape=[2, 2])).SerializeToString(),
    ]


def damaged(data: bytes, random: Random) -> bytes:
    """Return the bytes with some of them flipped, replaced, cut out, repeated, or cut off."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        index, length = random.randrange(len(changed)), random.choice((1, 1, 2, 8, 40))
        part = slice(index, index + length)
        way = random.randrange(5)
        if way == 0:
            changed[index] ^= 1 << random.randrange(8)
        elif way == 1:
            changed[part] = random.randbytes(length)
        elif way == 2:
            del changed[part]
        elif way == 3:
            changed[index:index] = changed[part]
        elif random.random() < 0.3:
            del changed[index:]
        if not changed:
            break
    return bytes(changed)


def distorted(data: bytes, random: Random) -> bytes:
    """Return a model that still parses, with other values in a few fields."""
    model = onnx.load_model_from_string(data)
    for _ in range(random.choice((1, 1, 2))):
        fields = [*_fields(model)]
        message, name, index = random.choice(fields)
        value = getattr(message, name)
        old = value[index] if index is not None else value
        new: Any = random.choice(EXTREMES if isinstance(old, int) else NAMES)
        if name in ("data_type", "elem_type", "type"):
            new = random.randrange(24)
        try:
            if index is None:
                setattr(message, name, new)
            elif random.random() < 0.3:
                del value[index]
            else:
                value[index] = new
        except (ValueError, TypeError):
            continue
    return bytes(model.SerializeToString())


def _fields(message: Any) -> Iterator[tuple[Any, str, int | None]]:
    """Yield every integer and text of a protobuf message, as its owner, its name, and its index in a list."""
    for field, value in message.ListFields():
        if hasattr(value, "ListFields"):
            yield from _fields(value)
        elif isinstance(value, int | str):
            yield message, field.name, None
        elif not isinstance(value, float | bytes):
            for index, item in enumerate(value):
                if hasattr(item, "ListFields"):
                    yield from _fields(item)
                elif isinstance(item, int | str):
                    yield message, field.name, index


def try_model(path: Path) -> str:
    """Import, build and run a model, and compare it with ONNX Runtime where that takes it."""
    model = tvmconv.import_model(path)
    model.convolutions()
    sizes = [spec.shape for spec in model.inputs]
    if not all(isinstance(side, int) and side > 0 for shape in sizes for side in shape):
        return "imported"
    if any(np.prod(shape, dtype=float) > SMALL for shape in sizes):
        return "imported, too large to run"
    network = tvmconv.build(model)
    rng = np.random.default_rng(0)
    inputs = {spec.name: rng.standard_normal(spec.shape).astype(spec.dtype) for spec in model.inputs}
    results = network(**inputs)
    results = results if isinstance(results, tuple) else (results,)
    named = {spec.name: np.asarray(result) for spec, result in zip(model.outputs, results, strict=True)}
    try:
        expected = run_onnxruntime(path, inputs, list(named))
    except TvmconvError:
        return "run, refused by ONNX Runtime"
    for found in compare(named, expected):
        assert found.agrees, f"{found.output} differs by {found.error}, allowed {found.bound}"
    return "run and right"


def try_log(path: Path) -> str:
    """Read, tidy, show and apply a log; check that a kernel compiled with it is right."""
    log = record.load_from_file(path)
    merged([log, log])
    pruned(log)
    compacted(log)
    if log.records:
        page("log", [read(path)])
    with autotvm.apply_history_best(path) as context:
        operator = tvmconv.compile(WORKLOAD)
        config = context.query("llvm", TEMPLATE.workload)
    if not config.is_fallback:
        TEMPLATE.instantiate(config)
    if "tuned" not in operator.selection.reason:
        return "left out"
    operands = random_operands(WORKLOAD)
    check_result(WORKLOAD, operands, operator(operands["x"], operands["w"]))
    return "applied and right"


WORKLOAD = ConvWorkload.depthwise((1, 8, 10, 10), (8, 1, 3, 3))
TEMPLATE = create_task("test/matmul", (32, "float32"), "llvm")


def logs() -> list[bytes]:
    """Return logs that this machine applies to one workload, and to a template."""
    tasks = [autotvm.create(WORKLOAD, "llvm"), TEMPLATE]
    device = device_facts("llvm")
    assert device is not None
    made = [MeasureResult((1e-6 * (9 - index),), Status.OK, None, 0.1, 1.0 + index, device) for index in range(5)]
    trials = [
        [MeasureInput(task.target, task, config, Stage.CONFIRM) for config in task.space.configs[:5]] for task in tasks
    ]
    lines = [[record.encode(record.Record.of(*one)) for one in zip(each, made, strict=True)] for each in trials]
    return [b"".join(each) for each in (*lines, lines[0] + lines[1])]


def twisted(data: bytes, random: Random) -> bytes:
    """Return a log with a few numbers, names or words of its JSON exchanged."""
    lines = [msgspec.json.decode(line) for line in data.splitlines()]
    for line in lines:
        if random.random() < 0.5:
            _twist(line, random)
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _twist(value: Any, random: Random) -> None:
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = random.choice(keys)
    new = random.choice(
        [None, True, "", "x", "space", [], {}, -1, 0, 1, 2, 16, 1e300, 1e-300, -1.5, *EXTREMES[7:11], 10**17]
    )
    if isinstance(value[key], dict | list) and random.random() < 0.9:
        _twist(value[key], random)
    elif isinstance(value, list) and random.random() < 0.2:
        value.append(new)
    else:
        value[key] = new


def main(arguments: list[str]) -> int:
    """Try damaged files until the time is over, or so many, and count the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--files", type=float, default=inf)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="The folder in which files are kept that were too much.")
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    kinds: list[tuple[str, list[bytes], list[Callable[[bytes, Random], bytes]], Callable[[Path], str]]] = [
        (".onnx", models(), [damaged, distorted, distorted], try_model),
        (".jsonl", logs(), [damaged, twisted], try_log),
    ]
    outcomes, until, failures = Counter[str](), time.monotonic() + given.seconds, 0
    with TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while number < given.files and time.monotonic() < until:
            random = Random(f"{given.seed}/{number}")
            suffix, sources, ways, attempt = random.choice(kinds)
            path = folder / f"hostile-{given.seed}-{number}{suffix}"
            path.write_bytes(random.choice(ways)(random.choice(sources), random))
            number += 1
            try:
                outcome = attempt(path)
            except TvmconvError as error:
                outcome = type(error).__name__
            except Exception as error:
                failures += 1
                print(f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())[-300:]}", flush=True)
                continue
            outcomes[f"{suffix[1:]}: {outcome}"] += 1
            path.unlink()
    told = ", ".join(f"{count} {what}" for what, count in outcomes.most_common())
    print(f"{number} files, {failures} failures; {told}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
