"""Calls repeated a great many times: `python -m tests.stability --calls 100000`.

Every kind of call gives the same bits each time, and the process grows by nothing; also with 24 threads at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.support import system
from tvmconv.testing import random_operands

GROWTH = 2**22
"""The bytes by which memory may grow or shrink by itself, some for each thread."""

THREADS = 24

DEPTHWISE = ConvWorkload.depthwise((1, 8, 14, 14), (8, 1, 3, 3), shift=True, activation="relu")
DENSE = ConvWorkload.conv2d((1, 16, 14, 14), (32, 16, 3, 3))
"""A workload just large enough for the threads of the machine."""

SPARSE = ConvWorkload.conv2d((1, 8, 14, 14), (16, 8, 3, 3))


@cache
def callers() -> dict[str, Callable[[], Any]]:
    """Return the calls to repeat: operators and a network, on arrays of NumPy and tensors of torch."""
    import torch

    calls: dict[str, Callable[[], Any]] = {}
    for name, workload in (("depthwise", DEPTHWISE), ("dense", DENSE)):
        operator, operands = tvmconv.compile(workload), random_operands(workload)
        arrays = [operands.get(each) for each in ("x", "w", "scale", "shift")]
        tensors = [None if each is None else torch.from_numpy(each) for each in arrays]
        calls[f"{name}, numpy"] = lambda operator=operator, arrays=arrays: operator(*arrays)
        calls[f"{name}, torch"] = lambda operator=operator, tensors=tensors: operator(*tensors)

    operands = random_operands(SPARSE)
    sparse = tvmconv.sparse_conv2d(np.where(operands["w"] > 1.3, operands["w"], 0))
    calls["sparse, numpy"] = lambda: sparse(operands["x"])

    graph = Graph((1, 4, 12, 12))
    first = graph.node("Relu", graph.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    model = graph.model(graph.node("MaxPool", graph.conv(first, (8, 1, 3, 3), group=8), kernel_shape=[2, 2]))
    network = tvmconv.build(tvmconv.import_model(model))
    x = np.random.default_rng(0).standard_normal((1, 4, 12, 12)).astype("float32")
    image = torch.from_numpy(x)
    calls["network, numpy"] = lambda: network(x)
    calls["network, torch"] = lambda: network(image)
    return calls


def repeated(call: Callable[[], Any], calls: int, threads: int = 1) -> tuple[int, int]:
    """Return how many calls gave other bits than the first, and the growth of the process in bytes after a tenth."""
    expected = _bits(call())
    all_there = Barrier(threads)

    def some(count: int) -> int:
        all_there.wait()  # else some threads would make the calls of others, which would begin, and grow, later
        return sum(_bits(call()) != expected for _ in range(count))

    with ThreadPoolExecutor(threads) as pool:
        different = sum(pool.map(some, [calls // 10 // threads] * threads))
        before = resident()
        different += sum(pool.map(some, [calls * 9 // 10 // threads] * threads))
        return different, resident() - before


def _bits(result: Any) -> bytes:
    return bytes(np.asarray(result).tobytes())


def resident() -> int:
    """Return the bytes of memory that this process has, without freed ones: these would hide a leak."""
    system.give_back_free_memory()
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def main(arguments: list[str]) -> bool:
    """Repeat each kind of call, alone and from many threads, and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    given = parser.parse_args(arguments)
    failed = False
    for name, call in callers().items():
        for threads in (1, THREADS):
            start = time.perf_counter()
            different, grown = repeated(call, given.calls, threads)
            failed |= different > 0 or grown > GROWTH
            each = (time.perf_counter() - start) / given.calls
            told = f"{different} of {given.calls} different, {grown / 1024:.0f} KiB grown, {each * 1e6:.0f} µs each"
            print(f"{name}, {threads} threads: {told}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
