"""Recurrent layers with their steps on one thread and on all: the work of a step from which threads pay, on this CPU.

    python benchmarks/recurrent_threads.py

prints a row for each number of directions and of channels: the multiply-adds of a step of a direction, and the µs of a
call of an LSTM in the ways of `tvmconv/network/recurrence/cpu.py`, the minimum of interleaved rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

import tvmconv
from tvmconv.network.passes.recurrences import cpu as recurrence_cpu

NEVER = 10**12

WAYS = {
    "one thread": (NEVER, NEVER),
    "a thread for each direction": (NEVER, 0),
    "threads share channels": (0, 0),
}
"""The least work for shared channels, and for directions in threads, by the name of the way that these make."""


def network(directions: int, channels: int, steps: int, way: str) -> Callable[..., object]:
    """Return the network of an LSTM whose steps are computed in one of `WAYS`."""
    shared, apart = WAYS[way]
    recurrence_cpu.SHARED_WORK = dict.fromkeys((1, 2), shared)
    recurrence_cpu.STEP_WORK = apart
    layer = torch.nn.LSTM(channels, channels, bidirectional=directions == 2).eval()
    return tvmconv.build(tvmconv.import_model(layer, (torch.zeros(steps, 1, channels),)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 24, 32, 64, 96, 128, 192, 256, 384, 512, 768])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    print("directions  channels  work of a step", *WAYS, sep="  ")
    for directions in (1, 2):
        for channels in given.channels:
            x = np.random.default_rng(0).standard_normal((given.steps, 1, channels)).astype("float32")
            networks = {way: network(directions, channels, given.steps, way) for way in WAYS}
            best = dict.fromkeys(WAYS, float("inf"))
            for _ in range(given.rounds):
                for way, run in networks.items():
                    run(x)
                    begun = time.perf_counter()
                    run(x)
                    best[way] = min(best[way], time.perf_counter() - begun)
            work = 4 * channels * channels
            print(f"{directions:10d}  {channels:8d}  {work:14d}", *(f"{1e6 * each:9.0f}" for each in best.values()))


if __name__ == "__main__":
    main()
