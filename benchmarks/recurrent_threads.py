"""Recurrent layers with their steps on one thread and on all: the work of a step from which threads pay, on this CPU.

    python benchmarks/recurrent_threads.py

prints a row for each number of directions and of channels: the multiply-adds of a step of a direction, and the µs of a
call of an LSTM in the ways of `tvmconv/network/passes/recurrences/cpu.py`, the minimum of interleaved rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from script import options_of, print_fastest

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
    channels = [16, 24, 32, 64, 96, 128, 192, 256, 384, 512, 768]
    given = options_of(__doc__, channels=channels, steps=64, rounds=15).parse_args()
    for directions in (1, 2):
        for channels in given.channels:
            x = np.random.default_rng(0).standard_normal((given.steps, 1, channels)).astype("float32")
            ways = {way: partial(network(directions, channels, given.steps, way), x) for way in WAYS}
            case = {"directions": directions, "channels": channels, "work of a step": 4 * channels * channels}
            print_fastest(case, ways, given.rounds)


if __name__ == "__main__":
    main()
