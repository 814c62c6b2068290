"""What is measured and what comes of it: the words that builders, runners, tuners and records share."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from ..errors import InvalidArgumentError
from ..targets import DeviceFacts
from ..workspace import Workspace
from .task import Task


class MeasureErrorNo(IntEnum):
    """AutoTVM's numbers for what may happen to a trial."""

    NO_ERROR = 0
    INSTANTIATION_ERROR = 1
    COMPILE_HOST = 2
    COMPILE_DEVICE = 3
    RUNTIME_DEVICE = 4
    WRONG_ANSWER = 5
    BUILD_TIMEOUT = 6
    RUN_TIMEOUT = 7
    UNKNOWN_ERROR = 8


class Status(str, Enum):
    """What happened to a trial, in the words of the records."""

    OK = "ok"
    BUILD_ERROR = "build error"
    BUILD_TIMEOUT = "build timeout"
    RUNTIME_ERROR = "runtime error"
    CRASH = "crash"
    RUN_TIMEOUT = "run timeout"
    WRONG_ANSWER = "wrong answer"
    STARTED = "started"
    """Its run has begun, and nothing more is known: the line that stays when the tuner is killed meanwhile."""

    @property
    def error_no(self) -> MeasureErrorNo:
        return _NUMBERS[self]


_NUMBERS = {
    Status.OK: MeasureErrorNo.NO_ERROR,
    Status.BUILD_ERROR: MeasureErrorNo.COMPILE_HOST,
    Status.BUILD_TIMEOUT: MeasureErrorNo.BUILD_TIMEOUT,
    Status.RUNTIME_ERROR: MeasureErrorNo.RUNTIME_DEVICE,
    Status.CRASH: MeasureErrorNo.RUNTIME_DEVICE,
    Status.RUN_TIMEOUT: MeasureErrorNo.RUN_TIMEOUT,
    Status.WRONG_ANSWER: MeasureErrorNo.WRONG_ANSWER,
    Status.STARTED: MeasureErrorNo.UNKNOWN_ERROR,
}


AHEAD = 8
"""How many trials are built, or wait to be run, for each that runs, at first: about as many as one builds in the time
of the others. Where that is too few and a runner had to wait, it grows up to what the builder builds at once."""


class Stage(str, Enum):
    """Why a configuration is measured."""

    SEARCH = "search"
    """The tuner asked for it."""
    CONFIRM = "confirm"
    """It was among the best, or is the default, and is measured again: these records decide."""


def never() -> bool:
    """The `stop` of a run that nothing stops."""
    return False


@dataclass(frozen=True)
class MeasureInput:
    """One trial: a configuration of a task's space."""

    task: Task
    config: Any
    stage: Stage = Stage.SEARCH


@dataclass(frozen=True)
class MeasureResult:
    """What came of a trial."""

    costs: tuple[float, ...]
    """Seconds of one call, averaged over each repeat; empty unless the status is OK."""
    status: Status
    reason: str | None
    """One bounded line for a trial that failed."""
    all_cost: float
    """Seconds that the trial took, building included."""
    timestamp: float
    """When it ended, in seconds since 1970."""
    device: DeviceFacts
    """What it ran on."""

    @property
    def cost(self) -> float:
        """Seconds of one call: the median of the repeats; infinite for a failure."""
        return median(self.costs) if self.status is Status.OK else float("inf")

    @property
    def error_no(self) -> MeasureErrorNo:
        return self.status.error_no


class BuildResult(NamedTuple):
    """A library with a trial's kernel, the workspace that the kernel wants, and the seconds that building took."""

    library: str
    workspace: Workspace
    seconds: float
    kernels: tuple[str, ...] = ()
    """The files beside the library with its machine code for a GPU."""


class Calls(NamedTuple):
    """How a kernel is timed: a cost is the average over `number` calls, or as many as take `min_repeat_ms`."""

    number: int
    repeat: int
    """How many costs there are."""
    min_repeat_ms: int
    flush: bool = False
    """A CPU's caches lose all arguments of the kernel but the first before each cost is taken."""


class RunResult(NamedTuple):
    """What a runner says of a kernel: costs in seconds, or what went wrong."""

    costs: tuple[float, ...]
    status: Status = Status.OK
    reason: str | None = None


class MeasureOption(Protocol):
    """Something that measures trials: `measure_option` makes one of a builder and a runner, `Simulator` is one."""

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        """Measures the trials, each as `started` is told, and yields every one when it ends, in any order.

        The inputs are asked for the next trial when there is room for one, while others are under way. The first trial
        begins to run before any other.

        `stop` is asked when a trial has ended. Once it is true no other begins to run; those that run are waited for.
        """
        ...

    def device(self, task: Task) -> DeviceFacts:
        """What it measures a task on; `NoDeviceError` where that is missing."""
        ...

    def close(self) -> None:
        """Ends its processes."""
        ...


class Builder(Protocol):
    """Makes libraries of trials; `LocalBuilder` is one."""

    @property
    def n_parallel(self) -> int:
        """How many it builds at once."""
        ...

    def build(self, trial: MeasureInput) -> Future[BuildResult]: ...

    def close(self) -> None: ...


class Runner(Protocol):
    """Checks and times what was built; `LocalRunner` and `RPCRunner` are runners."""

    def begin(self, task: Task) -> int:
        """Begins to start what runs the trials of a task, and tells how many of them it runs at once."""
        ...

    def device(self, task: Task) -> DeviceFacts: ...

    def shares_cores(self, task: Task) -> bool:
        """Whether builds on this machine would disturb the timing."""
        ...

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult: ...

    def close(self) -> None: ...


class measure_option:  # noqa: N801 (AutoTVM's name)
    """Measures trials with a builder and a runner: `measure_option(LocalBuilder(), LocalRunner())`.

    "local" stands for either of these.
    """

    def __init__(self, builder: Builder | str, runner: Runner | str) -> None:
        from .builder import LocalBuilder
        from .runner import LocalRunner

        for name, given in (("builder", builder), ("runner", runner)):
            if isinstance(given, str) and given != "local":
                raise InvalidArgumentError(name, given, f"'local' or a {name}")
        self.builder: Builder = LocalBuilder() if isinstance(builder, str) else builder
        self.runner: Runner = LocalRunner() if isinstance(runner, str) else runner

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        """See `MeasureOption`. Trials are built while others run, unless they would share the cores with them.

        Then they are built and run by turns, as many at a time as the builder builds at once.
        """
        waiting = iter(inputs)
        if (lead := next(waiting, None)) is None:
            return
        shares_cores, slots = self.runner.shares_cores(lead.task), self.runner.begin(lead.task)
        ahead = AHEAD * slots
        leading = self.builder.build(lead)
        building: dict[Future[BuildResult], MeasureInput] = {leading: lead}
        built: deque[tuple[MeasureInput, BuildResult]] = deque()
        running: dict[Future[RunResult], tuple[MeasureInput, BuildResult, float]] = {}
        runs = ThreadPoolExecutor(slots)
        try:
            while True:
                if stop():
                    waiting = iter(())
                    built.clear()
                    _cancel(building)
                held = bool(building) if shares_cores else leading in building
                # One waits for each that runs: no device is idle while the tuner proposes.
                while built and not held and len(running) < (1 if shares_cores else 2 * slots):
                    trial, build = built.popleft()
                    started(trial)
                    running[runs.submit(self.runner.run, trial, build)] = trial, build, time.perf_counter()
                if shares_cores:
                    room = self.builder.n_parallel - len(building) if not (built or running) else 0
                else:
                    if len(running) < slots and ahead < self.builder.n_parallel:
                        ahead += 1
                    room = ahead - len(building) - len(built)
                for trial in islice(waiting, max(0, room)):
                    building[self.builder.build(trial)] = trial
                if not (building or running):
                    return
                pending: list[Future[Any]] = [*building, *running]
                ended = wait(pending, return_when=FIRST_COMPLETED).done
                for built_future in ended & building.keys():
                    trial = building.pop(built_future)
                    if (error := built_future.exception()) is None:
                        place = 0 if built_future is leading else len(built)
                        built.insert(place, (trial, built_future.result()))
                    else:
                        yield trial, self._result(trial, _failed_build(error), 0.0)
                for run_future in ended & running.keys():
                    trial, build, start = running.pop(run_future)
                    Path(build.library).unlink(missing_ok=True)
                    seconds = build.seconds + time.perf_counter() - start
                    yield trial, self._result(trial, run_future.result(), seconds)
        finally:
            _cancel(building)
            runs.shutdown(wait=False, cancel_futures=True)

    def device(self, task: Task) -> DeviceFacts:
        """See `MeasureOption`."""
        return self.runner.device(task)

    def close(self) -> None:
        """See `MeasureOption`."""
        self.runner.close()
        self.builder.close()

    def _result(self, trial: MeasureInput, run: RunResult, seconds: float) -> MeasureResult:
        return MeasureResult(run.costs, run.status, run.reason, seconds, time.time(), self.device(trial.task))


def create_measure_batch(task: Task, option: MeasureOption) -> Callable[[Sequence[MeasureInput]], list[MeasureResult]]:
    """A function that measures trials of a task, and returns their results in the order of the trials."""

    def measure_batch(inputs: Sequence[MeasureInput]) -> list[MeasureResult]:
        if others := [str(trial.task) for trial in inputs if trial.task.problem != task.problem]:
            raise InvalidArgumentError("inputs", others[0], f"trials of {task}")
        results = dict(option.measure(inputs, lambda trial: None))
        return [results[trial] for trial in inputs]

    return measure_batch


def last_error(traceback: str) -> str:
    """What the last error in a traceback says."""
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception)\b:? ?", traceback, re.MULTILINE))
    return traceback[errors[-1].end() :] if errors else traceback


def _cancel(building: dict[Future[BuildResult], MeasureInput]) -> None:
    """Gives up what is not built yet."""
    while building:
        building.popitem()[0].cancel()


def _failed_build(error: BaseException) -> RunResult:
    if isinstance(error, TimeoutError):
        return RunResult((), Status.BUILD_TIMEOUT, "killed")
    if isinstance(error, ChildProcessError):
        return RunResult((), Status.CRASH, "the process that built it died")
    return RunResult((), Status.BUILD_ERROR, last_error(str(error)))
