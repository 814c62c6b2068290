"""Search by a cost model: gradient-boosted trees that learn which of two configurations is faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmconv.dispatch.record import Record
from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import Stage
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError
from tvmconv.problem.parameters import require_positive

from .tuner import Tuner, records_in

Vector = NDArray[np.float32]

TREES = 40
OBJECTIVES = {"rank": "rank:pairwise", "reg": "reg:squarederror"}
"""xgboost's names of AutoTVM's losses."""

PARAMETERS = {
    "lambdarank_pair_method": "mean",
    "lambdarank_num_pair_per_sample": 32,
    "max_depth": 4,
    "eta": 0.2,
    "min_child_weight": 0,  # pairs weigh little: the usual 1 would stop a tree of few trials early
    "nthread": 1,  # so few rows are not worth more, and sums would depend on their number
    "verbosity": 0,
}

Matrix = NDArray[np.float32]


class XGBTuner(Tuner):
    """Tries the configurations that a model of all trials so far ranks highest; a failure ranks last.

    The first batch is random, unless there are records of similar tasks. A space is small enough to score all of it
    each time, where AutoTVM had to search for the model's maximum.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    >>> tuner = autotvm.XGBTuner(task)
    >>> tuner.tune(n_trial=2, measure_option=option, callbacks=[autotvm.callback.log_to_file("conv.jsonl")])
    >>> option.close()
    >>> tuner.trials
    2
    """

    random_share = 0.1
    """The probability that an element of a batch is a random configuration."""

    diversity = 2.0
    """The penalty, in standard deviations of the score, for equalling another of the batch in all knobs."""

    history_size = 64
    """The number of records of each similar task that the model learns from, from its best to its worst."""

    def __init__(
        self,
        task: Task,
        plan_size: int | None = None,
        feature_type: str = "knob",
        loss_type: str = "rank",
        *,
        seed: int | None = None,
        **others: object,
    ) -> None:
        """Set the model's loss: "rank" learns which of two is faster, "reg" learns speeds themselves.

        `feature_type` is "knob": AutoTVM's others, which looked into lowered code, do not exist here. A batch has
        `plan_size` trials, by default few at first.
        """
        super().__init__(task, seed=seed, **others)
        if loss_type not in OBJECTIVES:
            raise InvalidArgumentError("loss_type", loss_type, f"one of {', '.join(OBJECTIVES)}")
        if feature_type != "knob":
            raise InvalidArgumentError("feature_type", feature_type, "knob")
        if plan_size is not None:
            require_positive("plan_size", plan_size)
        self._objective, self._plan_size = OBJECTIVES[loss_type], plan_size
        try:
            import xgboost
        except ImportError:
            raise MissingPackageError("xgboost", "tune", "XGBTuner") from None
        self._xgboost: Any = xgboost
        self._model_seed = int(self.rng.integers(2**31))
        self._similar: list[tuple[Matrix, Vector]] = []

    def load_history(self, records: Iterable[Record]) -> None:
        """Learn from records of other problems, or other devices; those of another template are left out."""
        groups = defaultdict[Any, list[Record]](list)
        for record in records_in(records):
            mine = (record.template, record.versions.template) == (self.task.name, self.task.maker.version)
            if mine and record.stage is Stage.SEARCH:
                groups[record.problem, record.device].append(record)
        for (problem, _), group in groups.items():
            ranked = sorted(group, key=lambda record: record.cost)[:: -(-len(group) // self.history_size)]
            other = self.task.for_problem(problem)
            ranked = [record for record in ranked if other.maker.accepts(record.knobs)]
            rows = matrix(other, [other.config(record.knobs) for record in ranked])
            if rows.shape[1:] == self._rows.shape[1:]:  # a template may have other knobs for other arguments
                self._similar.append((rows, _speeds(record.cost for record in ranked)))

    @property
    def batch_size(self) -> int:
        """The number of trials in a batch: few at first, when the model learns most from each."""
        if self._plan_size is not None:
            return self._plan_size
        return min(max(8, self.trials // 4), 64)

    def next_batch(self, size: int) -> list[Any]:
        if not (self.costs or self._similar):
            return self.sample(size)
        configs = list(self.unmeasured)
        rows = self._rows[[self._row_numbers[config] for config in configs]]
        strangers = self.sample(int(self.rng.binomial(size, self.random_share)))
        chosen = [configs[i] for i in self._pick(rows, size)]
        return list(dict.fromkeys([*strangers, *chosen]))[:size]

    @cached_property
    def _rows(self) -> Matrix:
        return matrix(self.task, self.space.configs)

    @cached_property
    def _row_numbers(self) -> dict[Any, int]:
        """The row of each configuration in the matrix of all."""
        return {config: number for number, config in enumerate(self.space.configs)}

    def _pick(self, rows: Matrix, size: int) -> list[int]:
        """Return the rows to try next: with a high score, and unlike each other."""
        scores = self._scores(rows)
        pool = np.argsort(-scores, kind="stable")[: 4 * size]
        values = scores[pool] / (scores[pool].std() + 1e-6)
        knobs = rows[pool, : len(self.space.knobs)]
        likeness = np.zeros(len(pool))
        picked = []
        for _ in range(min(size, len(pool))):
            best = int(np.argmax(values - self.diversity * likeness))
            picked.append(int(pool[best]))
            values[best] = -np.inf
            likeness = np.maximum(likeness, (knobs == knobs[best]).mean(axis=1))
        return picked

    def _scores(self, rows: Matrix) -> Vector:
        """Return the score of each row by a newly trained model: the higher the faster."""
        groups = [*self._similar, (matrix(self.task, list(self.costs)), _speeds(self.costs.values()))]
        groups = [group for group in groups if len(group[1])]
        features, speeds = (np.concatenate(parts) for parts in zip(*groups, strict=True))
        task_of_row = np.repeat(np.arange(len(groups)), [len(known) for _, known in groups])
        known = self._xgboost.DMatrix(features, speeds, qid=task_of_row)
        model = self._xgboost.train(
            {**PARAMETERS, "objective": self._objective, "seed": self._model_seed}, known, TREES
        )
        scores: Vector = model.inplace_predict(rows)
        return scores


def _speeds(costs: Iterable[float]) -> Vector:
    """Return the speeds that go with costs: 1 for the fastest, 0 for a failure."""
    seconds = np.fromiter(costs, np.float64)
    speeds = np.zeros(len(seconds), np.float32)
    np.divide(seconds.min(initial=np.inf), seconds, out=speeds, where=np.isfinite(seconds), casting="same_kind")
    return speeds


def matrix(task: Task, configs: Sequence[Any]) -> Matrix:
    """Return a matrix with a row for each configuration: log2(1 + value) of each of its knobs and features."""
    return np.log2(1 + np.array([task.features(config) for config in configs], np.float32))
