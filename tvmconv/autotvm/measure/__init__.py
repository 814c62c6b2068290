"""Measuring of trials: they are built and run in parallel, unless that would disturb their timing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureErrorNo, MeasureInput, MeasureResult, Stage, Status
from tvmconv.problem.errors import InvalidArgumentError, names_of
from tvmconv.targets import DeviceFacts

from ..gone import NAMES
from .builder import LocalBuilder
from .protocol import Builder, BuildResult, MeasureOption, Runner, RunResult, last_error, never, require_measure_option
from .runner import LocalRunner

__all__ = [
    "BuildResult",
    "Builder",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureOption",
    "MeasureResult",
    "RunResult",
    "Runner",
    "Stage",
    "Status",
    "create_measure_batch",
    "measure_option",
]

__getattr__ = names_of(__name__, NAMES)

AHEAD = 8
"""The number of trials that are built, or wait to be run, for each running trial, at first.

It is about the number that one process builds while the others run. Where that is too few and a runner had to wait, it
grows up to the number that the builder builds at once.
"""


class measure_option:  # noqa: N801 (AutoTVM's name)
    """Measures trials with a builder and a runner: `measure_option(LocalBuilder(), LocalRunner())`.

    "local" stands for either of these two objects.

    >>> from tvmconv import autotvm
    >>> option = autotvm.measure_option(autotvm.LocalBuilder(timeout=60), autotvm.LocalRunner(number=5, repeat=3))
    >>> option.close()
    """

    def __init__(self, builder: Builder | str, runner: Runner | str) -> None:
        for name, given, method in (("builder", builder, "build"), ("runner", runner, "run")):
            if given != "local" and not callable(getattr(given, method, None)):
                what = given if isinstance(given, str) else f"a {type(given).__name__}"
                raise InvalidArgumentError(name, what, f"'local' or a {name}, such as Local{name.capitalize()}()")
        self.builder: Builder = LocalBuilder() if isinstance(builder, str) else builder
        self.runner: Runner = LocalRunner() if isinstance(runner, str) else runner

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        """See `MeasureOption`. Trials are built while others run, unless builds would share the cores with them.

        Then they are built and run by turns, at most the builder's number of simultaneous builds at a time.
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
                # A built trial waits for each that runs: no device is idle while the tuner proposes.
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
                        index = 0 if built_future is leading else len(built)
                        built.insert(index, (trial, built_future.result()))
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
    """Return a function that measures trials of a task and returns their results in the order of the trials."""

    require_measure_option(option)

    def measure_batch(inputs: Sequence[MeasureInput]) -> list[MeasureResult]:
        if others := [str(trial.task) for trial in inputs if trial.task.problem != task.problem]:
            raise InvalidArgumentError("inputs", others[0], f"trials of {task}")
        results = dict(option.measure(inputs, lambda trial: None))
        return [results[trial] for trial in inputs]

    return measure_batch


def _cancel(building: dict[Future[BuildResult], MeasureInput]) -> None:
    """Cancel the builds that have not begun and forget all."""
    while building:
        building.popitem()[0].cancel()


def _failed_build(error: BaseException) -> RunResult:
    if isinstance(error, TimeoutError):
        return RunResult((), Status.BUILD_TIMEOUT, "killed")
    if isinstance(error, ChildProcessError):
        return RunResult((), Status.CRASH, "the process that built it died")
    return RunResult((), Status.BUILD_ERROR, last_error(str(error)))
