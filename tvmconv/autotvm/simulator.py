"""A simulator that replays an exhaustive log instead of measuring: it compares and tests tuners without the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tvm

from tvmconv.dispatch import algorithm_of, template_named
from tvmconv.dispatch.record import Record
from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureInput, MeasureResult, Stage
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.space import Space
from tvmconv.targets import DeviceFacts

from .measure.protocol import never
from .task import ConvTask


@dataclass(frozen=True)
class ReplayedTask(ConvTask):
    """A task with the configurations that a log has tried as its space, whatever its template tries today."""

    configs: tuple[Any, ...] = ()
    """The configurations: the default at that time, then the others."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> ReplayedTask:
        """Return the task that records of one problem and one target belong to."""
        inorder = sorted(records, key=lambda record: record.config.index or 0)
        configs, target = tuple(map(_config, inorder)), tvm.target.Target(records[0].target)
        if not isinstance(problem := records[0].problem, Problem):
            raise InvalidArgumentError("records", str(problem), "records of a convolution")
        algorithm = "auto" if problem.sparsity is not None else algorithm_of(records[0].template)
        how = {name: getattr(problem, name) for name in ("sparsity", "precision", "direction")}
        return cls(problem.workload, target, algorithm=algorithm, configs=configs, **how)

    @cached_property
    def space(self) -> Space[Any]:
        today = super().space
        knobs = {name: tuple(sorted({getattr(config, name) for config in self.configs})) for name in today.knobs}
        tried = {"tried": frozenset(self.configs).__contains__}
        return replace(today, default=self.configs[0], knobs=knobs, heuristics=tried, promising=None)


class Simulator:
    """A `MeasureOption` that answers every trial at once with a log's result for its configuration."""

    def __init__(self, records: Sequence[Record]) -> None:
        searched = [record for record in records if record.stage is Stage.SEARCH]
        if not searched:
            raise InvalidArgumentError("records", len(records), "records of a search")
        self._outcomes = {(record.problem, _config(record)): record.outcome for record in searched}
        self._device = searched[0].device

    def device(self, task: Task) -> DeviceFacts:
        """Return the device that the log was measured on, whatever the task."""
        return self._device

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        """Yield the trials with their results, in order; raise InvalidArgumentError for one that is not in the log."""
        for trial in inputs:
            if stop():
                return
            outcome = self._outcomes.get((trial.task.problem, trial.config))
            if outcome is None:
                raise InvalidArgumentError("config", trial.config, f"one that the log has of {trial.task.problem}")
            started(trial)
            yield trial, outcome

    def close(self) -> None:
        """Do nothing: there is no process to end."""


def _config(record: Record) -> Any:
    """Return the record's configuration; knobs that are newer than it have the values that keep its meaning."""
    try:
        return template_named(record.template).Config(**record.knobs)
    except (InvalidArgumentError, TypeError):
        made = f"{record.template} with {', '.join(record.knobs)}"
        raise InvalidArgumentError("records", made, "those of a schedule that is here, with its knobs") from None
