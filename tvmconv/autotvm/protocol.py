"""What builders, runners and tuners tell each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from ..dispatch.task import Task
from ..dispatch.trial import MeasureInput, MeasureResult, Status
from ..targets import DeviceFacts
from ..workspace import Workspace


def never() -> bool:
    """The `stop` of a run that nothing stops."""
    return False


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


def last_error(traceback: str) -> str:
    """What the last error in a traceback says."""
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception)\b:? ?", traceback, re.MULTILINE))
    return traceback[errors[-1].end() :] if errors else traceback
