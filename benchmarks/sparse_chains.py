"""Chains of pruned convolutions on a CPU, sparse and dense: what a layer takes with its code and weights in the caches,
and when other data has been through them since.

    python benchmarks/sparse_chains.py    # with one thread

A row is a chain of six convolutions of 64 to 64 channels, 3x3, 90% zeros, with six weights, for images of one size: µs
of a layer warm, without what the first two caches hold, and from memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median

import msgspec
import numpy as np
import torch
from script import Row, main
from torch import nn

import tvmconv
from tvmconv.bench.networks.weights import prune
from tvmconv.bench.timing import Timing

LAYERS = 6
EVICTED = {"warm": 0, "from L3": 3 * 2**20, "from memory": 96 * 2**20}
"""The number of bytes that are written between two calls: more than the caches hold."""


def timing(network: tvmconv.Network, x: np.ndarray, evicted: int, rounds: int) -> Timing:
    """Return the time of one layer."""
    others, times = np.zeros(evicted // 4, np.float32), []
    for _ in range(rounds):
        others += 1
        start = time.perf_counter()
        network(x)
        times.append((time.perf_counter() - start) / LAYERS)
    return Timing(median(times), min(times), max(times))


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each size, of sparse and of dense kernels."""
    tvmconv.set_num_threads(given.threads)
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(LAYERS))).eval()
    prune(module, 0.9)
    for size in given.sizes:
        x = torch.randn(1, 64, size, size)
        source = tvmconv.import_model(module, (x,))
        for kind, sparse in (("sparse", "always"), ("dense", "never")):
            network = tvmconv.build(source, "llvm", sparse)
            times = {name: timing(network, x.numpy(), evicted, given.rounds) for name, evicted in EVICTED.items()}
            yield {"size": f"{size}x{size}", "kind": kind, "times": msgspec.to_builtins(times)}


if __name__ == "__main__":
    main(__doc__, rows, sizes=[2, 7, 14, 28], rounds=25, threads=1)
