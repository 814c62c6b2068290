"""The run that all tuners share: from the default configuration to the confirmation of the best few."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from math import inf
from typing import Any

import numpy as np

from tvmconv.dispatch.record import Record
from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureInput, MeasureResult, Stage, Status
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import is_integer, require_positive

from ..flops import rate, scale_of
from ..gone import refuse_arguments
from ..measure.protocol import MeasureOption, never, require_callbacks, require_measure_option

logger = logging.getLogger("autotvm")

FINALISTS = 5
"""The number of best configurations that are measured again at the end."""

ROUNDS = 3
"""The number of times that each of the finalists is measured again."""


class Tuner(ABC):
    """Searches the space of a task; each subclass chooses in another way what to try next.

    The same seed and the same results bring the same trials in the same order. `InvalidArgumentError` tells of
    arguments that AutoTVM's tuners had and these do not.
    """

    def __init__(self, task: Task, *, seed: int | None = None, **others: object) -> None:
        refuse_arguments(type(self).__name__, others)
        if not isinstance(task, Task):
            raise InvalidArgumentError("task", task, "a task, such as autotvm.create returns")
        if seed is not None and not (is_integer(seed) and seed >= 0):
            raise InvalidArgumentError("seed", seed, "an integer of 0 or more, or None")
        self.task = task
        self.space = task.space
        self.rng = np.random.default_rng(seed)
        self.unmeasured: dict[Any, None] = dict.fromkeys(self.space.configs)
        """The configurations neither searched nor proposed yet, in the order of the space."""
        self.costs: dict[Any, float] = {}
        """The seconds of a call by configuration, in the order of the trials; infinite for a failure."""
        self.best: tuple[Any, MeasureResult] | None = None
        """The fastest configuration of the search."""
        self.failures: Counter[Status] = Counter()
        self._under_way: set[Any] = set()
        """The configurations that are proposed, and whose trials have not ended."""
        self._best_trial = 0
        self._confirmed: Counter[Any] = Counter()

    @property
    def trials(self) -> int:
        """The number of search trials that ended, resumed ones included."""
        return len(self.costs)

    @property
    def default_cost(self) -> float:
        """The seconds of a call with the default configuration; infinite while unknown."""
        return self.costs.get(self.space.default, inf)

    @property
    def batch_size(self) -> int:
        """The number of trials that are proposed at once."""
        return 16

    @abstractmethod
    def next_batch(self, size: int) -> list[Any]:
        """Return the configurations to try next: different ones of `unmeasured`, `size` of them or all left."""

    def has_next(self) -> bool:
        """Return whether something is left to try."""
        return bool(self.unmeasured)

    def resume(self, records: Iterable[Record]) -> None:
        """Go on from earlier records of this task: their trials count, and are not made again."""
        for record in records_in(records):
            trial = MeasureInput(self.task.target, self.task, self.task.config(record.knobs), record.stage)
            self.update([trial], [record.outcome])

    def load_history(self, records: Iterable[Record]) -> None:
        """Learn from records of similar tasks, if the tuner can."""
        records_in(records)

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Take note of trials that ended."""
        for trial, result in zip(inputs, results, strict=True):
            if result.status is not Status.OK:
                self.failures[result.status] += 1
            if trial.stage is Stage.CONFIRM:
                self._confirmed[trial.config] += 1
                continue
            self.unmeasured.pop(trial.config, None)
            self._under_way.discard(trial.config)
            self.costs[trial.config] = min(result.cost, self.costs.get(trial.config, inf))
            if result.status is Status.OK and (self.best is None or result.cost < self.best[1].cost):
                self.best, self._best_trial = (trial.config, result), self.trials

    def tune(
        self,
        n_trial: int,
        measure_option: MeasureOption,
        early_stopping: int | None = None,
        callbacks: Sequence[Callback] = (),
        stop: Callable[[], bool] = never,
        *,
        si_prefix: str = "G",
    ) -> None:
        """Measure the default configuration, then those that the tuner proposes, and the best few again at the end.

        The search ends after `n_trial` trials, resumed ones included, when the space is exhausted, or when the last
        `early_stopping` trials brought nothing better. `stop` is asked after every trial; once it is true, no other
        trial begins, not even to confirm. Each callback is told of every trial when it starts to run, which one that
        cannot be built never does, and when it ends. The logger "autotvm" tells each trial that ended, at its level
        DEBUG, with its rate in the unit that `si_prefix` makes of FLOPS.
        """
        scale_of(si_prefix)
        _require_run(n_trial, measure_option, early_stopping, callbacks)

        def announce(trial: MeasureInput, result: MeasureResult) -> None:
            for callback in callbacks:
                callback(self, [trial], [result])

        def started(trial: MeasureInput) -> None:
            device = measure_option.device(trial.task)
            announce(trial, MeasureResult((), Status.STARTED, None, 0.0, time.time(), device))

        def measure(inputs: Iterable[MeasureInput], is_over: Callable[[], bool]) -> None:
            with closing(measure_option.measure(inputs, started, is_over)) as ended:
                for trial, result in ended:
                    self.update([trial], [result])
                    self._log(trial, result, si_prefix)
                    announce(trial, result)

        def is_over() -> bool:
            stale = early_stopping is not None and self.trials - self._best_trial >= early_stopping
            return self.trials >= n_trial or stale or stop()

        if not is_over():
            try:
                measure(self._proposals(n_trial), is_over)
            finally:
                self._take_back()
        finalists = self._finalists()
        if not stop() and any(self._confirmed[config] < ROUNDS for config in finalists):
            again = finalists * ROUNDS  # interleaved: what disturbs a round disturbs all alike
            measure([MeasureInput(self.task.target, self.task, config, Stage.CONFIRM) for config in again], stop)

    def sample(self, size: int) -> list[Any]:
        """Return random configurations of `unmeasured`, `size` of them or all that are left."""
        configs = list(self.unmeasured)
        return [configs[i] for i in self.rng.permutation(len(configs))[:size]]

    def _proposals(self, n_trial: int) -> Iterator[MeasureInput]:
        """Yield trials until there are `n_trial`, those under way included, batch by batch, the default first of all.

        A batch is proposed when it is asked for, by the results known then.
        """
        while self.has_next() and (left := n_trial - self.trials - len(self._under_way)) > 0:
            batch = self._propose(min(self.batch_size, left))
            self._under_way.update(batch)
            for config in batch:
                self.unmeasured.pop(config, None)  # a space may be too large to list
            for config in batch:
                yield MeasureInput(self.task.target, self.task, config)

    def _take_back(self) -> None:
        """Put configurations that were proposed but never measured back among `unmeasured`."""
        if self._under_way:
            left = self.unmeasured.keys() | self._under_way
            self.unmeasured = {config: None for config in self.space.configs if config in left}
            self._under_way.clear()

    def _log(self, trial: MeasureInput, result: MeasureResult, si_prefix: str) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            best = inf if self.best is None else self.best[1].cost
            current, best_rate = (rate(self.task.flop, cost, si_prefix) for cost in (result.cost, best))
            what = result.reason or f"{1e6 * result.cost:.4g} µs"
            unit, progress = f"{si_prefix.strip()}FLOPS", f"{trial.stage.value} {self.trials}"
            logger.debug(
                "%s\t%s: %.2f/%.2f\t%s: %s\t%s",
                progress,
                unit,
                current,
                best_rate,
                result.status.value,
                what,
                trial.config,
            )

    def _propose(self, size: int) -> list[Any]:
        """Return the next batch; the default comes first, as a search cut short must not know slower ones only."""
        batch = self.next_batch(size)
        default = self.space.default
        if default in self.unmeasured:
            batch = [default, *(config for config in batch if config != default)][:size]
        return batch

    def _finalists(self) -> list[Any]:
        """Return the best few and the default, without those that failed, best first."""
        ranked = sorted((config for config, cost in self.costs.items() if cost < inf), key=self.costs.__getitem__)
        default = self.space.default
        return [config for rank, config in enumerate(ranked) if rank < FINALISTS or config == default]


def records_in(records: Iterable[Record]) -> list[Record]:
    """Return records as a list; raise `InvalidArgumentError` for anything else, such as the path of a log."""
    expected = "records, as record.load_from_file reads them from a log"
    if isinstance(records, str | bytes) or not isinstance(records, Iterable):
        raise InvalidArgumentError("records", records, expected)
    listed = list(records)
    for each in listed:
        if not isinstance(each, Record):
            raise InvalidArgumentError("records", f"a list of {type(each).__name__}", expected)
    return listed


def _require_run(n_trial: object, measure_option: object, early_stopping: object, callbacks: object) -> None:
    """Raise `InvalidArgumentError` for a wrong argument of `Tuner.tune`."""
    if not is_integer(n_trial) or n_trial < 0:
        raise InvalidArgumentError("n_trial", n_trial, "an integer of 0 or more")
    if early_stopping is not None:
        require_positive("early_stopping", early_stopping)
    require_measure_option(measure_option)
    require_callbacks(callbacks)


Callback = Callable[[Tuner, Sequence[MeasureInput], Sequence[MeasureResult]], None]
"""A function that is told of trials, as AutoTVM's callbacks are; one that begins has a result of `Status.STARTED`."""
