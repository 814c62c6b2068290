"""The harness of the scripts: options, rows in a document and as text, and what contenders compute and take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec
import torch
import tvm

from tvmconv.bench.peers.pytorch import strict_and_fastest
from tvmconv.bench.report import versions
from tvmconv.bench.timing import Timing, measure, micro, use_threads_of_tvm
from tvmconv.support.store import write_whole
from tvmconv.targets import backend_of, device_facts, resolve_target

Row = dict[str, Any]
TARGETS = dict.fromkeys(["cuda", "llvm"] if torch.cuda.is_available() else ["llvm", "cuda"])
"""The choices of an option `--target`: a GPU is the default where there is one."""
ORDERS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CLOSE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error of a depthwise convolution that passes, as `errors_of` counts it, by type."""


def words(text: str) -> list[str]:
    """Return the words in text such as "float32,float16"."""
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    """Return the numbers in text such as "1,32"."""
    return [int(word) for word in words(text)]


def options_of(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser that shows the docstring of a script, with an option for each default, and `--output`.

    A default that is a list is an option for text with commas, one that is False a flag, a tuple is names behind the
    options, a dictionary the choices, of which the first is the default, and a function parses an option without one.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(name, nargs="*", default=list(default))
        elif isinstance(default, dict):
            parser.add_argument(flag, choices=list(default), default=next(iter(default)))
        elif isinstance(default, list):
            convert = numbers if default and isinstance(default[0], int) else words
            parser.add_argument(flag, type=convert, default=default, help=",".join(map(str, default)))
        elif callable(default):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help="%(default)s")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file to write, whole with each row")
    return parser


def main(
    doc: str | None, rows: Callable[[argparse.Namespace], Iterable[Row]], ours: str = "tvmconv", **defaults: Any
) -> None:
    """Print the rows that a function yields for the options of a script, and write them beside the options to a file.

    `target` is among the options, or "llvm". Behind the rows are the geometric means of the contenders' times
    beside ours.
    """
    given = options_of(doc, **defaults).parse_args()
    kind = resolve_target(getattr(given, "target", "llvm")).kind.name
    options = {name: value for name, value in vars(given).items() if name != "output"}
    head = {"device": device_facts(kind), "versions": versions(kind), **options}
    found = list[Row]()
    for row in rows(given):
        found.append(row)
        print(described(row), flush=True)
        if given.output:
            content = json.dumps(msgspec.to_builtins({**head, "rows": found}), indent=1)
            write_whole(given.output, f"{content}\n".encode())
    print_means(found, ours)


def begin(target: str) -> tuple[tvm.target.Target, str]:
    """Return a target and the device of its tensors; PyTorch gets TVM's threads, strict float32 and cuDNN's search."""
    resolved = resolve_target(target)
    use_threads_of_tvm(resolved)
    strict_and_fastest()
    torch.backends.cuda.matmul.allow_tf32 = False
    return resolved, backend_of(resolved).device_type


def described(value: Any) -> str:
    """Return a row, or a value in one, as text: a time in microseconds with its extremes, a number in four digits."""
    if isinstance(value, dict):
        if value.keys() == {"median", "low", "high"}:
            timing = msgspec.convert(value, Timing)
            return f"{micro(timing.median)} µs ({timing.spread})"
        return ", ".join(f"{name} {described(each)}" for name, each in value.items() if each not in (None, "", {}))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_means(rows: Iterable[Row], ours: str) -> None:
    """Print how many times as long as ours others take in the geometric mean over rows, for each kind of row."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        times = {name: each["median"] for name, each in row.get("times", {}).items()}
        for name in times.keys() - {ours} if ours in times else ():
            ratios.setdefault((row.get("kind", ""), name), []).append(times[name] / times[ours])
    for (kind, name), each in ratios.items():
        told = f"{geometric_mean(each):.3f} times as long as {ours} ({min(each):.2f} to {max(each):.2f})"
        print(f"{kind} {name}: {told}, geometric mean of {len(each)}".lstrip())


def timed(calls: Mapping[str, Callable[[], Any]], device: str, rounds: int, seconds: float) -> Row:
    """Return the times of calls, in turn, each for a number of seconds a round, for a row."""
    return dict(msgspec.to_builtins(measure(calls, device == "cuda", rounds, seconds)))


def errors_of(results: Mapping[str, Any], exact: Any, close: float, what: str) -> dict[str, float]:
    """Return the largest difference of each result, as a share of the exact one's largest number.

    Raises `AssertionError` for one that is not less than `close`, with the name of what was computed.
    """
    largest = exact.double().abs().max()
    errors = {name: float((each.double() - exact).abs().max() / largest) for name, each in results.items()}
    wrong = {name: error for name, error in errors.items() if not error <= close}
    assert not wrong, f"{what}: wrong by {wrong}"
    return errors
