"""Replays an exhaustive log instead of measuring: tuners are compared, and tested, without the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tvm

from ..dispatch import template_named
from ..dispatch.record import Record
from ..dispatch.task import Task
from ..dispatch.trial import MeasureInput, MeasureResult, Stage
from ..errors import InvalidArgumentError
from ..problem import Problem
from ..schedules.space import Space
from ..targets import DeviceFacts
from .protocol import never
from .task import ConvTask


@dataclass(frozen=True)
class ReplayedTask(ConvTask):
    """A task whose space is what a log has tried of it, whatever its template tries today."""

    configs: tuple[Any, ...] = ()
    """The default at that time, then the others."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> ReplayedTask:
        """The task that records of one problem and one target are of."""
        inorder = sorted(records, key=lambda record: record.config.index or 0)
        configs, target = tuple(map(_config, inorder)), tvm.target.Target(records[0].target)
        if not isinstance(problem := records[0].problem, Problem):
            raise InvalidArgumentError("records", str(problem), "records of a convolution")
        workload, sparsity = problem
        algorithm = "auto" if sparsity is not None else records[0].template.split("/")[1]
        return cls(workload, target, algorithm=algorithm, sparsity=sparsity, configs=configs)

    @cached_property
    def space(self) -> Space[Any]:
        today = super().space
        knobs = {name: tuple(sorted({getattr(config, name) for config in self.configs})) for name in today.knobs}
        tried = {"tried": frozenset(self.configs).__contains__}
        return replace(today, default=self.configs[0], knobs=knobs, heuristics=tried)


class Simulator:
    """Answers every trial at once with what a log has of its configuration: a `MeasureOption` like any other."""

    def __init__(self, records: Sequence[Record]) -> None:
        searched = [record for record in records if record.stage is Stage.SEARCH]
        if not searched:
            raise InvalidArgumentError("records", len(records), "records of a search")
        self._outcomes = {(record.problem, _config(record)): record.outcome for record in searched}
        self._device = searched[0].device

    def device(self, task: Task) -> DeviceFacts:
        """What the log was measured on, whatever the task."""
        return self._device

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        """The trials with their results, in order; InvalidArgumentError for one that the log does not have."""
        for trial in inputs:
            if stop():
                return
            outcome = self._outcomes.get((trial.task.problem, trial.config))
            if outcome is None:
                raise InvalidArgumentError("config", trial.config, f"one that the log has of {trial.task.problem}")
            started(trial)
            yield trial, outcome

    def close(self) -> None:
        """Nothing to end."""


def _config(record: Record) -> Any:
    """The record's configuration; knobs that its template got later have the values that mean what was before."""
    try:
        return template_named(record.template).Config(**record.knobs)
    except (InvalidArgumentError, TypeError):
        made = f"{record.template} with {', '.join(record.knobs)}"
        raise InvalidArgumentError("records", made, "those of a schedule that is here, with its knobs") from None
