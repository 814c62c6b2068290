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

import numpy as np
import torch
from script import Row, main
from torch import nn

import tvmconv
from tvmconv.bench.networks.weights import prune

LAYERS = 6
EVICTED = {"warm": 0, "from L3": 3 * 2**20, "from memory": 96 * 2**20}
"""The number of bytes that are written between two calls: more than the caches hold."""


def seconds(network: tvmconv.Network, x: np.ndarray, evicted: int, rounds: int) -> list[float]:
    """Return the seconds of one layer in each round."""
    others, times = np.zeros(evicted // 4, np.float32), []
    for _ in range(rounds):
        others += 1
        start = time.perf_counter()
        network(x)
        times.append((time.perf_counter() - start) / LAYERS)
    return sorted(times)


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
            found = {name: seconds(network, x.numpy(), evicted, given.rounds) for name, evicted in EVICTED.items()}
            times = {name: {"median": t[len(t) // 2], "low": t[0], "high": t[-1]} for name, t in found.items()}
            yield {"size": f"{size}x{size}", "kind": kind, "times": times}


if __name__ == "__main__":
    main(__doc__, rows, sizes=[2, 7, 14, 28], rounds=25, threads=1)
