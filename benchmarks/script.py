"""The harness of the scripts: options, rows in a document and as text, and what contenders compute and take."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec
import torch

from tvmconv.bench.report import versions
from tvmconv.bench.timing import Timing, measure, micro
from tvmconv.support.store import write_whole
from tvmconv.targets import device_facts, resolve_target

Row = dict[str, Any]
TARGETS = dict.fromkeys(["cuda", "llvm"] if torch.cuda.is_available() else ["llvm", "cuda"])
"""The choices of an option `--target`: a GPU is the default where there is one."""
ORDERS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


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
    doc: str | None,
    rows: Callable[[argparse.Namespace], Iterable[Row]],
    text: Callable[[Row], str] | None = None,
    **defaults: Any,
) -> None:
    """Print the rows that a function yields for the options of a script, and write them beside the options to a file.

    `target` is among the options, or "llvm". Behind the rows are the geometric means of the contenders' times.
    """
    given = options_of(doc, **defaults).parse_args()
    kind = resolve_target(getattr(given, "target", "llvm")).kind.name
    options = {name: value for name, value in vars(given).items() if name != "output"}
    head = {"device": device_facts(kind), "versions": versions(kind), **options}
    found = list[Row]()
    for row in rows(given):
        found.append(row)
        print((text or described)(row), flush=True)
        if given.output:
            content = json.dumps(msgspec.to_builtins({**head, "rows": found}), indent=1)
            write_whole(given.output, f"{content}\n".encode())
    print_means(found)


def described(row: Row) -> str:
    """Return a row as a line: its words and numbers, and its times with their extremes."""
    plain = {name: value for name, value in row.items() if value and not isinstance(value, dict | list)}
    texts = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in plain.items()]
    return ": ".join(filter(None, (" ".join(texts), ", ".join(spans(row.get("times", {}))))))


def spans(times: Mapping[str, Any]) -> list[str]:
    """Return the median and the extremes of each contender's times in microseconds, as text."""
    timings = {name: msgspec.convert(each, Timing) for name, each in times.items()}
    return [f"{name} {micro(each.median)} µs ({each.spread})" for name, each in timings.items()]


def print_means(rows: Iterable[Row]) -> None:
    """Print how many times as long as tvmconv others take in the geometric mean over rows, for each kind of row."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        times = {name: each["median"] for name, each in row.get("times", {}).items()}
        for name in times.keys() - {"tvmconv"} if "tvmconv" in times else ():
            ratios.setdefault((row.get("kind", ""), name), []).append(times[name] / times["tvmconv"])
    for (kind, name), each in ratios.items():
        told = f"{geometric_mean(each):.3f} times as long as tvmconv, geometric mean of {len(each)}"
        print(f"{kind} {name}: {told}".lstrip())


def timed(calls: Mapping[str, Callable[[], Any]], on_gpu: bool, rounds: int, seconds: float) -> Row:
    """Return the times of calls, in turn, each for a number of seconds a round, for a row."""
    return dict(msgspec.to_builtins(measure(calls, on_gpu, rounds, seconds)))


def errors_of(results: Mapping[str, Any], exact: Any, close: float, what: str) -> dict[str, float]:
    """Return the largest difference of each result, as a share of the exact one's largest number.

    Raises `AssertionError` for one that is not less than `close`, with the name of what was computed.
    """
    largest = exact.double().abs().max()
    errors = {name: float((each.double() - exact).abs().max() / largest) for name, each in results.items()}
    wrong = {name: error for name, error in errors.items() if not error <= close}
    assert not wrong, f"{what}: wrong by {wrong}"
    return errors


def exported(
    module: torch.nn.Module, path: Path, open_axes: Mapping[int, str] | None = None, dtype: str = "float32"
) -> Path:
    """Write a module of images (1, 3, 224, 224) to an ONNX file of x and y; axes of x may be open, by their names."""
    example, axes = torch.zeros(1, 3, 224, 224, dtype=getattr(torch, dtype)), {"x": dict(open_axes or {})}
    names = {"input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter through TorchScript is to be replaced
        torch.onnx.export(module, (example,), str(path), **names, dynamic_axes=axes, dynamo=False)
    return path


def copy_of(nbytes: int, device: str) -> Callable[[], Any]:
    """Return a call that copies memory, and reads and writes a number of bytes in all."""
    source = torch.empty(max(1, nbytes // 2), dtype=torch.uint8, device=device)
    return partial(torch.empty_like(source).copy_, source)


def profile_of(call: Callable[[], Any], calls: int) -> torch.profiler.profile:
    """Return the profile of the GPU in a number of calls, after three that are not in it."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return profile
