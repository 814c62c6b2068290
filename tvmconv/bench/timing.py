"""Timing several contenders side by side: in turn, so that all of them see the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of the rounds, and the extremes."""

    median: float
    low: float
    high: float


def measure(
    contenders: Mapping[str, Callable[[], object]], on_gpu: bool, rounds: int, seconds: float
) -> dict[str, Timing]:
    """Times every contender once a round, each time for about `seconds`, one call after the other on the same arrays.

    So caches are warm, a GPU's L2 too. On a GPU the calls are captured in a CUDA graph once, and its replays are timed
    with events; so launches from Python are not in the figures.
    """
    timers = {name: (_GraphTimer if on_gpu else _WallTimer)(call, seconds) for name, call in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            samples[name].append(timer.sample())
    return {name: Timing(median(values), min(values), max(values)) for name, values in samples.items()}


class _WallTimer:
    SETTLE = 0.02
    """Seconds of untimed calls: the threads of the contender before go on spinning for a while."""

    def __init__(self, call: Callable[[], object], seconds: float) -> None:
        self.call = call
        self.number = 1
        self.number = max(1, int(seconds / min(self.sample() for _ in range(3))))

    def sample(self) -> float:
        settled = time.perf_counter() + self.SETTLE
        while time.perf_counter() < settled:
            self.call()
        start = time.perf_counter()
        for _ in range(self.number):
            self.call()
        return (time.perf_counter() - start) / self.number


class _GraphTimer:
    CALLS = 20

    def __init__(self, call: Callable[[], object], seconds: float) -> None:
        import torch

        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                for _ in range(self.CALLS):
                    call()
        self.replays = 1
        self.sample()
        self.replays = max(1, int(seconds / (self.CALLS * self.sample())))

    def sample(self) -> float:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            start.record()
            for _ in range(self.replays):
                self.graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / (self.replays * self.CALLS)
