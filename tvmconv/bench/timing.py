"""Timing of several contenders in turn, so that all of them see the same machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tvmconv.problem.errors import TvmconvError
from tvmconv.targets import device_facts

if TYPE_CHECKING:
    import tvm

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The seconds of one call: the median of the rounds, and the extremes."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> str:
        """The extremes in microseconds."""
        return f"{micro(self.low)}-{micro(self.high)}"


def micro(seconds: float) -> float:
    """Return microseconds in four digits, or whole ones."""
    value = 1e6 * seconds
    return round(value) if value >= 1000 else float(f"{value:.4g}")


def use_threads_of_tvm(target: tvm.target.Target) -> None:
    """Give PyTorch the number of threads on a CPU that TVM has on the target."""
    import torch

    device = device_facts(target.kind.name)
    assert device is not None  # it was asked for
    if device.threads is not None:
        torch.set_num_threads(device.threads)


def measure(contenders: Mapping[str, Call], on_gpu: bool, rounds: int, seconds: float) -> dict[str, Timing]:
    """Time every contender once a round, each time for about `seconds`, one call after the other on the same arrays.

    So caches are warm, a GPU's L2 too. On a GPU the calls are captured in a CUDA graph once, and its replays are timed
    with events; so launches from Python are not in the figures.
    """
    return interleave({name: timer([call], on_gpu, seconds) for name, call in contenders.items()}, rounds)


Timer = Callable[[], float]
"""A function that measures once and returns the seconds of one call, on average."""


def timer(calls: Sequence[Call], on_gpu: bool, seconds: float) -> Timer:
    """Return a function that times a contender for about `seconds`, with its calls, on different arrays, by turns.

    With `sets_beyond_cache` calls, no call finds its arrays in a cache.
    """
    return (_GraphTimer if on_gpu else _WallTimer)(calls, seconds).sample


PATIENCE, FEWEST = 10.0, 3
"""The seconds after which a contender has no more rounds, and the number of rounds that it has in any case."""


def interleave(timers: Mapping[str, Timer], rounds: int) -> dict[str, Timing]:
    """Measure with every timer once a round; a very slow one has fewer rounds than the others."""
    samples: dict[str, list[float]] = {name: [] for name in timers}
    spent = dict.fromkeys(timers, 0.0)
    for done in range(rounds):
        for name, sample in timers.items():
            if done < FEWEST or spent[name] < PATIENCE:
                start = time.perf_counter()
                samples[name].append(sample())
                spent[name] += time.perf_counter() - start
    return {name: Timing(median(values), min(values), max(values)) for name, values in samples.items()}


def sets_beyond_cache(nbytes: int, on_gpu: bool) -> int:
    """Return the number of sets of arrays of `nbytes` that exceed twice the last cache in front of memory."""
    return 2 * last_level_cache(on_gpu) // nbytes + 1


def last_level_cache(on_gpu: bool) -> int:
    """Return the bytes of the GPU's L2, or of the largest cache that a CPU has."""
    if on_gpu:
        import torch

        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20}
    found = [int(text[:-1]) * units[text[-1]] for text in (size.read_text().strip() for size in sizes)]
    if not found:
        raise TvmconvError("this system does not tell how large the caches of its CPU are, so they cannot be kept cold")
    return max(found)


class _InTurn:
    """A call that makes the next of several calls each time.

    All outputs but the oldest are kept, so that each call has its output in other memory, too.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = cycle(calls)
        self.outputs = deque[object](maxlen=len(calls) - 1)

    def __call__(self) -> None:
        self.outputs.append(next(self.calls)())


class _WallTimer:
    SETTLE = 0.02
    """The seconds of untimed calls: the threads of the contender before go on spinning for a while."""
    SLOW = 0.5
    """The seconds from which a call is not made untimed: it is much longer than the spinning."""

    def __init__(self, calls: Sequence[Call], seconds: float) -> None:
        self.call = _InTurn(calls) if len(calls) > 1 else calls[0]
        self.number, self.settle = len(calls), 0.0
        quickest = self.sample()
        if quickest < self.SLOW:
            self.settle = self.SETTLE
            quickest = min(self.sample() for _ in range(3))
        self.number = len(calls) * max(1, int(seconds / (len(calls) * quickest)))

    def sample(self) -> float:
        settled = time.perf_counter() + self.settle
        while time.perf_counter() < settled:
            self.call()
        start = time.perf_counter()
        for _ in range(self.number):
            self.call()
        return (time.perf_counter() - start) / self.number


class _GraphTimer:
    CALLS = 20
    """The least number of calls in a graph."""

    def __init__(self, calls: Sequence[Call], seconds: float) -> None:
        import torch

        self.call = _InTurn(calls)  # kept: a graph does not keep the kernels that it calls
        self.captured = len(calls) * -(-self.CALLS // len(calls))
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.call()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                for _ in range(self.captured):
                    self.call()
        self.replays = 1
        self.sample()
        self.replays = max(1, int(seconds / (self.captured * self.sample())))

    def sample(self) -> float:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            start.record()
            for _ in range(self.replays):
                self.graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / (self.replays * self.captured)
