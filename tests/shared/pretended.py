"""Pretended measuring for tests of tuners: trials end in the order and after the times of real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tvmconv import ConvWorkload
from tvmconv.autotvm.measure import BuildResult, MeasureInput, MeasureResult, RunResult, Status
from tvmconv.autotvm.task import Task, create
from tvmconv.lowering.workspace import NO_WORKSPACE
from tvmconv.targets import DeviceFacts, device_facts

WORKLOAD = ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3))
TASK = create(WORKLOAD, "llvm")


class Instant:
    """Measures by a formula: the default takes 100 µs, others more the further they are from the 7th, which takes 1 µs.

    A configuration fails if `failing` is true for its index in the space.
    """

    def __init__(self, failing: Callable[[int], bool] = lambda index: False, seconds: float = 0.0) -> None:
        self.failing = failing
        self.seconds = seconds
        self.measured: list[int] = []

    def device(self, task: Task) -> DeviceFacts:
        facts = device_facts("llvm")
        assert facts is not None
        return facts

    def measure(
        self, inputs: Sequence[MeasureInput], started: Callable[[MeasureInput], None], stop: Callable[[], bool]
    ) -> Iterator[tuple[MeasureInput, MeasureResult]]:
        for trial in inputs:
            if stop():
                return
            started(trial)
            time.sleep(self.seconds)
            index = trial.task.space.index[trial.config]
            self.measured.append(index)
            cost = 1e-6 * (abs(index - 7) + 1 if index else 100)
            failed = self.failing(index)
            status = Status.CRASH if failed else Status.OK
            costs = () if failed else (cost, 0.9 * cost, 1.1 * cost)
            yield trial, MeasureResult(costs, status, "it died" if failed else None, 0.1, 1.0, self.device(trial.task))

    def close(self) -> None:
        pass


@dataclass
class Scripted:
    """A builder of several at once, and a runner of two slots, which runs a trial by calling `runs` with its index.

    It notes the events "built", "begun" and "ended", with the trial's index in the space.
    """

    runs: Callable[[int], object] = lambda index: time.sleep(0.005)
    n_parallel: int = 4
    failing: frozenset[int] = frozenset()
    events: list[tuple[str, int]] = field(default_factory=list)
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.n_parallel)

    def note(self, what: str, trial: MeasureInput) -> int:
        index = trial.task.space.index[trial.config]
        with self.lock:
            self.events.append((what, index))
        return index

    def build(self, trial: MeasureInput) -> Future[BuildResult]:
        def build() -> BuildResult:
            if self.note("built", trial) in self.failing:
                raise RuntimeError("it cannot be built")
            time.sleep(0.05 if trial.config == trial.task.space.default else 0.005)
            return BuildResult("/nowhere/kernel.so", NO_WORKSPACE, 0.0)

        return self.pool.submit(build)

    def begin(self, of: Task) -> int:
        return 2

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        index = self.note("begun", trial)
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.runs(index)
        with self.lock:
            self.running -= 1
        self.note("ended", trial)
        return RunResult((1e-6 * (index + 1),))

    def device(self, of: Task) -> DeviceFacts:
        return DeviceFacts("none")

    def shares_cores(self, of: Task) -> bool:
        return False

    def close(self) -> None:
        self.pool.shutdown()

    def of(self, what: str) -> list[int]:
        return [index for event, index in self.events if event == what]
