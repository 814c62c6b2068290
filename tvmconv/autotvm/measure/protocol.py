"""Interfaces between builders, runners and tuners."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from numbers import Real
from typing import Any, NamedTuple, Protocol

from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureInput, MeasureResult, Status
from tvmconv.lowering.workspace import Workspace
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import is_integer, require_positive
from tvmconv.targets import DeviceFacts


def never() -> bool:
    """Return False: the `stop` of a run that nothing stops."""
    return False


class BuildResult(NamedTuple):
    """A library with a trial's kernel, the workspace that the kernel wants, and the seconds that building took."""

    library: str
    workspace: Workspace
    seconds: float
    kernels: tuple[str, ...] = ()
    """The paths of files beside the library with its machine code for a GPU."""


class Calls(NamedTuple):
    """The timing of a kernel: a cost is the average over `number` calls, or more, until they take `min_repeat_ms`."""

    number: int
    repeat: int
    """The number of costs that are measured."""
    min_repeat_ms: int
    flush: bool = False
    """True if a CPU's caches lose all arguments of the kernel but the first before each cost is taken."""

    @classmethod
    def checked(cls, number: int, repeat: int, min_repeat_ms: int, enable_cpu_cache_flush: bool) -> Calls:
        """Return the timing by a runner's arguments; raise `InvalidArgumentError` for one that is wrong."""
        require_positive("number", number)
        require_positive("repeat", repeat)
        if not is_integer(min_repeat_ms) or min_repeat_ms < 0:
            raise InvalidArgumentError("min_repeat_ms", min_repeat_ms, "a number of milliseconds, 0 or more")
        if enable_cpu_cache_flush and (number, min_repeat_ms) != (1, 0):
            expected = "False, or number=1 and min_repeat_ms=0: the second call of a repeat finds its caches warm"
            raise InvalidArgumentError("enable_cpu_cache_flush", enable_cpu_cache_flush, expected)
        return cls(number, repeat, min_repeat_ms, enable_cpu_cache_flush)


class RunResult(NamedTuple):
    """A runner's result for a kernel: costs in seconds, or the reason why there are none."""

    costs: tuple[float, ...]
    status: Status = Status.OK
    reason: str | None = None


class MeasureOption(Protocol):
    """An object that measures trials: `measure_option` makes one of a builder and a runner, `Simulator` is one."""

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        """Measure the trials, call `started` as each begins, and yield each when it ends, in any order.

        The inputs are asked for the next trial when there is room for one, while others are under way. The first trial
        begins to run before any other.

        `stop` is asked when a trial has ended. Once it is true no other begins to run; those that run are waited for.
        """
        ...

    def device(self, task: Task) -> DeviceFacts:
        """Return the device that a task is measured on; raise `NoDeviceError` where it is missing."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


class Builder(Protocol):
    """Makes libraries of trials; `LocalBuilder` is one."""

    @property
    def n_parallel(self) -> int:
        """The number of kernels that are built at once."""
        ...

    def build(self, trial: MeasureInput) -> Future[BuildResult]: ...

    def close(self) -> None: ...


class Runner(Protocol):
    """Checks and times kernels that were built; `LocalRunner` and `RPCRunner` are runners."""

    def begin(self, task: Task) -> int:
        """Begin to start the processes for the trials of a task; return the number of trials that run at once."""
        ...

    def device(self, task: Task) -> DeviceFacts: ...

    def shares_cores(self, task: Task) -> bool:
        """Return whether builds on this machine would disturb the timing."""
        ...

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult: ...

    def close(self) -> None: ...


def require_seconds(name: str, value: Any, may_be_zero: bool = False) -> None:
    """Raise `InvalidArgumentError` unless a value is a positive number of seconds, or 0 where that `may_be_zero`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not (value > 0 or (may_be_zero and value == 0)):
        raise InvalidArgumentError(name, value, f"a number of seconds, {'0 or more' if may_be_zero else 'above 0'}")


def require_measure_option(value: Any) -> None:
    """Raise `InvalidArgumentError` unless a value can measure trials, as `measure_option` and `Simulator` do."""
    if not callable(getattr(value, "measure", None)):
        expected = "what measures trials: measure_option(LocalBuilder(), LocalRunner())"
        raise InvalidArgumentError("measure_option", value, expected)


def require_callbacks(value: object) -> None:
    """Raise `InvalidArgumentError` unless a value is a list of functions."""
    if not isinstance(value, Sequence) or not all(map(callable, value)):
        what = f"a {type(value).__name__}" if callable(value) else value
        raise InvalidArgumentError("callbacks", what, "a list of functions of (tuner, inputs, results)")


def last_error(traceback: str) -> str:
    """Return the message of the last error in a traceback."""
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception)\b:? ?", traceback, re.MULTILINE))
    return traceback[errors[-1].end() :] if errors else traceback
