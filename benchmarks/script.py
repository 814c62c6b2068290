"""What scripts share: options, the document with their rows, builds side by side, profiles, copies and errors."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from tvmconv.bench.report import versions
from tvmconv.bench.timing import measure
from tvmconv.support.store import write_whole
from tvmconv.targets import device_facts

Row = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)
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
    options, and a dictionary the choices, of which the first is the default.
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
        else:
            parser.add_argument(flag, type=type(default), default=default, help="%(default)s")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file to write, whole with each row")
    return parser


class Document:
    """The rows of a run, with its device, versions and settings, in a file that each row is added to."""

    def __init__(self, output: Path | None, kind: str, **about: Any) -> None:
        """Take the kind of target, "llvm" or "cuda", that is measured."""
        self.output, self.rows = output, list[Row]()
        self.head = {"device": device_facts(kind), "versions": versions(kind), **about}

    def add(self, row: Row, text: str) -> None:
        """Add a row, print it as text, and write the file."""
        self.rows.append(row)
        print(text, flush=True)
        if self.output:
            content = json.dumps(msgspec.to_builtins({**self.head, "rows": self.rows}), indent=1)
            write_whole(self.output, f"{content}\n".encode())


def built_until(
    end: float, jobs: int, build: Callable[..., str], cases: Mapping[Key, tuple[Any, ...]]
) -> Iterator[tuple[Key, Callable[[], str]]]:
    """Build a network for each case, side by side in processes, and yield functions that return its file.

    The last argument of `build` is the file. The function raises the error of the build, and TimeoutError once
    `time.perf_counter()` is past the end.
    """
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        building = {
            key: pool.submit(build, *arguments, f"{folder}/{number}.so")
            for number, (key, arguments) in enumerate(cases.items())
        }
        for key, future in building.items():
            yield key, partial(future.result, max(0.0, end - time.perf_counter()))
        pool.shutdown(cancel_futures=True)


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


def error_of(result: Any, exact: Any) -> float:
    """Return the largest difference of a result, as a share of the largest number of the exact one."""
    return float((result.double() - exact).abs().max() / exact.abs().max())


def print_fastest(columns: Mapping[str, object], ways: Mapping[str, Callable[[], Any]], rounds: int = 15) -> None:
    """Print a row of an experiment on this CPU: its columns, and the µs of a call in the fastest round of each way."""
    times = measure(ways, False, rounds, seconds=0.002)
    print(
        *(f"{name} {value}" for name, value in columns.items()),
        *(f"{name}: {1e6 * timing.low:.1f} µs" for name, timing in times.items()),
        sep="  ",
        flush=True,
    )
