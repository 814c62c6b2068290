"""Experiments on this CPU behind thresholds of the package: a row for each case, with µs of a call in each way.

python benchmarks/thresholds.py lengths        # rows: a kernel for each length, and those of ASSUMED_LENGTHS for any
python benchmarks/thresholds.py one-channel    # vectors of columns (depthwise) or of filters (dense), and PyTorch
python benchmarks/thresholds.py recurrent      # an LSTM whose steps have one thread, one a direction, or all
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from script import Row, errors_of, main, timed

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.network.passes.recurrences import cpu as recurrences
from tvmconv.problem import ASSUMED_LENGTHS, Problem
from tvmconv.runtime.operator import compile_problem
from tvmconv.targets import resolve_target

BATCH, CHANNELS, TAPS = 2, 256, 4
LENGTHS = (1, 2, 4, 8, 15, 16, 24, 32, 64, 100, 128, 200, 256, 300, 512, 1000, 2048, 2049, 4096)

ONE_CHANNEL = [
    *((1, 16000, filters, (1, 40), (1, 20)) for filters in (8, 16, 32)),
    *((1, 16000, filters, (1, 128), (1, 1)) for filters in (8, 16, 64)),
    (1, 48000, 402, (1, 400), (1, 160)),
    *((side, side, filters, (3, 3), (1, 1)) for side in (28, 112) for filters in (8, 16, 32)),
    *((side, side, filters, (3, 3), (2, 2)) for side in (128, 224) for filters in (8, 16, 32)),
    (64, 64, 64, (7, 7), (2, 2)),
]
"""Height, width, filters, kernel and stride."""

NEVER, STEPS = 10**12, 64
WAYS = {"one thread": (NEVER, NEVER), "a thread for each direction": (NEVER, 0), "threads share channels": (0, 0)}
"""The least work for shared channels, and for directions in threads, by the name of the way that these make."""

Case = tuple[Row, dict[str, Callable[[], Any]]]


def network(module: torch.nn.Module, x: torch.Tensor) -> Callable[..., Any]:
    return tvmconv.build(tvmconv.import_model(module.eval(), (x,)))


def lengths() -> Iterator[Case]:
    """Yield causal convolutions of rows of many lengths."""
    random, target = np.random.default_rng(0), resolve_target("llvm")
    w, shift = random.random((CHANNELS, 1, 1, TAPS), "float32"), random.random(CHANNELS, "float32")

    def kernel(length: int, *open_sizes: str) -> Callable[..., Any]:
        shapes, padding = ((1, CHANNELS, 1, length), (CHANNELS, 1, 1, TAPS)), (0, TAPS - 1, 0, 0)
        workload = ConvWorkload.depthwise(*shapes, padding=padding, shift=True, activation="silu")
        problem = Problem(workload, open_sizes=("batch", *open_sizes))
        return compile_problem(problem, select(problem, target), target)

    of_any = {f"any ({length})": kernel(length, "width") for length in ASSUMED_LENGTHS}
    for length in LENGTHS:
        x = random.random((BATCH, CHANNELS, 1, length), "float32")
        operators = {"one length": kernel(length), **of_any}
        yield {"length": length}, {name: partial(each, x, w, shift=shift) for name, each in operators.items()}


def one_channel() -> Iterator[Case]:
    """Yield convolutions of one channel, which `ConvWorkload.is_depthwise` takes for the one or the other."""
    workload_type = importlib.import_module("tvmconv.problem.workload").ConvWorkload
    for height, width, filters, kernel, stride in ONE_CHANNEL:
        layer, x = torch.nn.Conv2d(1, filters, kernel, stride).eval(), torch.randn(1, 1, height, width)
        ways: dict[str, Callable[[], Any]] = {}
        for way in ("depthwise", "dense"):
            workload_type.is_depthwise = property(lambda self, way=way: way == "depthwise")
            ways[way] = partial(network(layer, x), x)
        results = {name: torch.from_dlpack(run()) for name, run in ways.items()}
        errors_of(results, layer.double()(x.double()), 1e-5, f"{filters} filters of {kernel}")
        ways["PyTorch"] = partial(layer.float(), x)
        yield {"input": f"{height}x{width}", "filters": filters, "kernel": str(kernel), "stride": str(stride)}, ways


def recurrent() -> Iterator[Case]:
    """Yield LSTMs, with the multiply-adds of a step of a direction, from which threads pay."""
    for directions in (1, 2):
        for channels in (16, 24, 32, 64, 96, 128, 192, 256, 384, 512, 768):
            x, ways = torch.randn(STEPS, 1, channels), {}
            for way, (shared, apart) in WAYS.items():
                recurrences.SHARED_WORK, recurrences.STEP_WORK = dict.fromkeys((1, 2), shared), apart
                layer = torch.nn.LSTM(channels, channels, bidirectional=directions == 2)
                ways[way] = partial(network(layer, x), x)
            yield {"directions": directions, "channels": channels, "work of a step": 4 * channels * channels}, ways


EXPERIMENTS = {"lengths": lengths, "one-channel": one_channel, "recurrent": recurrent}


@torch.no_grad()
def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the experiments that were asked for."""
    for name in given.experiments:
        for case, ways in EXPERIMENTS[name]():
            yield {"name": name, **case, "times": timed(ways, "cpu", given.rounds, 0.002)}


if __name__ == "__main__":
    main(__doc__, rows, experiments=tuple(EXPERIMENTS), rounds=15)
