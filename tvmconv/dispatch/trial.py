"""A trial: a configuration of a task that is measured, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from statistics import median
from typing import TYPE_CHECKING, Any

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import DeviceFacts

from .task import Task

if TYPE_CHECKING:
    import tvm


class MeasureErrorNo(IntEnum):
    """AutoTVM's numbers for the outcome of a trial."""

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
    """The outcome of a trial, in the words of the records."""

    OK = "ok"
    BUILD_ERROR = "build error"
    BUILD_TIMEOUT = "build timeout"
    RUNTIME_ERROR = "runtime error"
    CRASH = "crash"
    RUN_TIMEOUT = "run timeout"
    WRONG_ANSWER = "wrong answer"
    STARTED = "started"
    """The run has begun, and nothing more is known: the line that stays when the tuner is killed meanwhile."""

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


class Stage(str, Enum):
    """The purpose for which a configuration is measured."""

    SEARCH = "search"
    """The tuner asked for it."""
    CONFIRM = "confirm"
    """The configuration was among the best, or is the default, and is measured again: these records decide."""


@dataclass(frozen=True)
class MeasureInput:
    """A trial to be measured: a configuration of a task's space; arguments and their order are AutoTVM's."""

    target: tvm.target.Target = field(compare=False)
    """The target of the task."""
    task: Task
    config: Any
    stage: Stage = Stage.SEARCH

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise InvalidArgumentError("task", self.task, "a task, as in MeasureInput(task.target, task, config)")
        if str(self.target) != str(self.task.target):
            raise InvalidArgumentError("target", str(self.target), f"the target of the task, {self.task.target}")


@dataclass(frozen=True)
class MeasureResult:
    """The result of a trial."""

    costs: tuple[float, ...]
    """The seconds of one call, averaged over each repeat; empty unless the status is OK."""
    status: Status
    reason: str | None
    """The cause, in one line of bounded length, where the trial failed."""
    all_cost: float
    """The seconds that the trial took, building included."""
    timestamp: float
    """The time when it ended, in seconds since 1970."""
    device: DeviceFacts
    """The device that it ran on."""

    @property
    def cost(self) -> float:
        """The seconds of one call: the median of the repeats; infinite for a failure."""
        return median(self.costs) if self.status is Status.OK else float("inf")

    @property
    def error_no(self) -> MeasureErrorNo:
        return self.status.error_no
