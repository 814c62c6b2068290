"""Chains of pruned convolutions on a CPU, sparse and dense: what a layer takes with its code and weights in the caches,
and when other data has been through them since.

    python benchmarks/sparse_chains.py [SIZE]...

Prints, for 64 to 64 channels, 3x3, 90% zeros and images SIZE x SIZE, microseconds of a layer in a chain of six with six
weights: warm, without what the first two caches hold, and from memory.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median

os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

import tvmconv
from tvmconv.bench.networks.weights import prune

LAYERS, ROUNDS = 6, 25
EVICTED = {"warm": 0, "from L3": 3 * 2**20, "from memory": 96 * 2**20}
"""The number of bytes that are written between two calls: more than the caches hold."""


def chain() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(LAYERS))).eval()
    prune(module, 0.9)
    return module


def microseconds(network: tvmconv.Network, x: np.ndarray, evicted: int) -> float:
    """Return the microseconds of one layer."""
    others, times = np.zeros(evicted // 4, np.float32), []
    for _ in range(ROUNDS):
        others += 1
        start = time.perf_counter()
        network(x)
        times.append(time.perf_counter() - start)
    return 1e6 * median(times) / LAYERS


def main() -> None:
    for size in map(int, sys.argv[1:] or (2, 7, 14, 28)):
        x = torch.randn(1, 64, size, size)
        source = tvmconv.import_model(chain(), (x,))
        for kind, sparse in (("sparse", "always"), ("dense", "never")):
            network = tvmconv.build(source, "llvm", sparse)
            times = (f"{microseconds(network, x.numpy(), evicted):.1f} {name}" for name, evicted in EVICTED.items())
            print(f"{size}x{size}, {kind}: {', '.join(times)}", flush=True)


if __name__ == "__main__":
    main()
