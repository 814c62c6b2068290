"""Tuners on exhaustive logs that are replayed: their trials, their order, their end, and how soon they are good."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from tests.shared.scripts import rows_of, script
from tvmconv import ConvWorkload
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record
from tvmconv.autotvm.simulator import Simulator
from tvmconv.autotvm.task import ConvTask, Task
from tvmconv.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, Tuner, XGBTuner
from tvmconv.autotvm.tuner.tuner import FINALISTS, ROUNDS
from tvmconv.autotvm.tuner.xgb_tuner import matrix
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError
from tvmconv.targets import DeviceFacts, resolve_target

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
SMALL = ConvTask(ConvWorkload.depthwise((1, 16, 5, 5), (16, 1, 3, 3)), SM_90)
LARGE, SIMILAR = (ConvTask(ConvWorkload.depthwise((32, c, 14, 14), (c, 1, 5, 5)), SM_90) for c in (672, 480))
DEVICE = DeviceFacts("a device that does not exist")
TUNERS = [XGBTuner, GATuner, RandomTuner, GridSearchTuner]


@cache
def exhaustive(task: Task) -> tuple[Record, ...]:
    """Return a trial of every configuration: slow for wasted work or few threads; the default is slow, some fail."""
    random = np.random.default_rng(0)
    records = []
    for config in task.space.configs:
        known = task.template.features(Problem(task.workload), config, SM_90)
        seconds = 1e-6 * known["waste"] * known["last_wave"] * (1 + 100 / known["outputs_per_sm"])
        seconds *= 1 + 0.1 * abs(np.log2(known["threads"] / 160)) + 0.2 * config.shared_input
        seconds *= random.normal(1, 0.02) * (2 if config == task.space.default else 1)
        failed = config != task.space.default and random.random() < 0.1
        status = Status.WRONG_ANSWER if failed else Status.OK
        result = MeasureResult(() if failed else (seconds,) * 3, status, None, 0.1, 1e9, DEVICE)
        records.append(Record.of(MeasureInput(task.target, task, config), result))
    return tuple(records)


class Journal:
    """A callback that keeps the trials it is told of."""

    def __init__(self) -> None:
        self.trials: list[tuple[MeasureInput, MeasureResult]] = []

    def __call__(self, tuner: Tuner, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        self.trials += zip(inputs, results, strict=True)

    def of(self, stage: Stage) -> list[Any]:
        """Return the configurations whose trials of a stage ended, in order."""
        ended = [trial for trial, result in self.trials if result.status is not Status.STARTED]
        return [trial.config for trial in ended if trial.stage is stage]

    @property
    def records(self) -> list[Record]:
        return [Record.of(*trial) for trial in self.trials if trial[1].status is not Status.STARTED]


def tune(tuner: Tuner, n_trial: int, **options: Any) -> Journal:
    journal = Journal()
    tuner.tune(n_trial, Simulator(exhaustive(tuner.task)), callbacks=[journal], **options)
    return journal


@pytest.mark.parametrize("tuner_type", TUNERS)
def test_a_small_space_is_exhausted_without_repeats(tuner_type: type[Tuner]) -> None:
    configs = SMALL.space.configs
    assert 50 < len(configs) < 250, "the space suits the test"
    tuner = tuner_type(SMALL, seed=1)
    searched = tune(tuner, 10_000).of(Stage.SEARCH)
    assert searched[0] == SMALL.space.default
    assert len(searched) == tuner.trials == len(configs)
    assert set(searched) == set(configs)
    assert not tuner.has_next()
    records = exhaustive(SMALL)
    assert tuner.best is not None
    assert tuner.best[1].cost == min(record.cost for record in records)
    assert tuner.default_cost == records[0].cost
    assert tuner.failures == {Status.WRONG_ANSWER: sum(record.status is not Status.OK for record in records)}


@pytest.mark.parametrize("tuner_type", TUNERS)
def test_the_seed_decides_the_order(tuner_type: type[Tuner]) -> None:
    first, again, other = (tune(tuner_type(LARGE, seed=seed), 60).of(Stage.SEARCH) for seed in (1, 1, 2))
    assert len(first) == 60
    assert first == again
    assert (first == other) == (tuner_type is GridSearchTuner)


@pytest.mark.parametrize("tuner_type", TUNERS)
def test_resumed_trials_count_and_are_not_repeated(tuner_type: type[Tuner]) -> None:
    before = tune(tuner_type(LARGE, seed=1), 40)
    tuner = tuner_type(LARGE, seed=1)
    tuner.resume(before.records)
    assert tuner.trials == 40
    after = tune(tuner, 70)
    assert len(after.of(Stage.SEARCH)) == 30
    assert not set(before.of(Stage.SEARCH)) & set(after.of(Stage.SEARCH))


def test_a_finished_run_that_is_resumed_measures_nothing() -> None:
    before = tune(RandomTuner(LARGE, seed=1), 40)
    tuner = RandomTuner(LARGE, seed=2)
    tuner.resume(before.records)
    assert tune(tuner, 40).trials == []


def test_each_trial_is_announced_before_it_ends() -> None:
    journal = tune(RandomTuner(LARGE, seed=1), 20)
    statuses = [result.status for _, result in journal.trials]
    assert statuses[0::2] == [Status.STARTED] * (len(statuses) // 2)
    assert Status.STARTED not in statuses[1::2]
    assert [trial for trial, _ in journal.trials[0::2]] == [trial for trial, _ in journal.trials[1::2]]


def test_the_best_few_and_the_default_are_confirmed_in_turn() -> None:
    tuner = RandomTuner(LARGE, seed=1)
    confirmed = tune(tuner, 40).of(Stage.CONFIRM)
    ranked = sorted(tuner.costs, key=tuner.costs.__getitem__)
    expected = [*ranked[:FINALISTS], LARGE.space.default]
    assert LARGE.space.default not in ranked[:FINALISTS], "the space suits the test"
    assert confirmed == expected * ROUNDS


def test_the_search_ends_when_nothing_better_comes() -> None:
    tuner = GridSearchTuner(LARGE)
    searched = tune(tuner, 600, early_stopping=25).of(Stage.SEARCH)
    assert tuner.best is not None
    assert len(searched) == searched.index(tuner.best[0]) + 1 + 25 < 600


def test_stop_ends_everything_at_once() -> None:
    tuner = RandomTuner(LARGE, seed=1)
    journal = tune(tuner, 600, stop=lambda: tuner.trials == 21)
    assert len(journal.of(Stage.SEARCH)) == 21
    assert len(journal.trials) == 42, "no other trial begins, not even to confirm"
    assert tune(RandomTuner(LARGE), 600, stop=lambda: True).trials == []


@pytest.mark.parametrize("tuner_type", TUNERS)
def test_a_space_in_which_everything_fails_is_searched_to_the_end(tuner_type: type[Tuner]) -> None:
    broken = MeasureResult((), Status.BUILD_ERROR, "no compiler", 0.1, 1e9, DEVICE)
    records = [Record.of(MeasureInput(SMALL.target, SMALL, config), broken) for config in SMALL.space.configs]
    tuner, journal = tuner_type(SMALL, seed=1), Journal()
    tuner.tune(80, Simulator(records), callbacks=[journal])
    assert tuner.failures == {Status.BUILD_ERROR: 80}
    assert tuner.best is None
    assert journal.of(Stage.CONFIRM) == []


def test_a_configuration_that_the_log_lacks_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="config is Config.*one that the log has"):
        RandomTuner(LARGE, seed=1).tune(20, Simulator(exhaustive(LARGE)[:10]))


def test_the_cost_model_needs_fewer_trials_than_chance_and_fewer_still_with_history() -> None:
    records = exhaustive(LARGE)
    with script("tuners") as tuners:
        goal = tuners.WITHIN * min(record.cost for record in records)

    def trials(tuner: Tuner) -> int:
        return int(tuners.trials_to_reach(goal, tuner, Simulator(records)))

    def warm(seed: int) -> Tuner:
        tuner = XGBTuner(LARGE, seed=seed)
        tuner.load_history(exhaustive(SIMILAR))
        return tuner

    cold = median(trials(XGBTuner(LARGE, seed=seed)) for seed in range(5))
    assert cold <= len(records) / 10
    assert 2 * cold <= median(trials(RandomTuner(LARGE, seed=seed)) for seed in range(40))  # which vary most
    assert median(trials(warm(seed)) for seed in range(5)) <= cold / 2


@pytest.mark.parametrize("name", ["mb-512x14", "mb-960x7"])
def test_what_was_measured_on_an_h100_is_found_in_a_tenth_of_the_space(name: str) -> None:
    log = Path(__file__).parents[2] / "tuning_logs" / "exhaustive" / f"{name}.jsonl.gz"
    with script("tuners") as tuners:
        rows = {row["tuner"]: row for row in rows_of(tuners, logs=[log], seeds=5)}
    assert rows["xgb"]["share"] <= 0.1
    assert rows["xgb"]["median"] < rows["random"]["median"]


def test_history_of_another_template_is_left_out() -> None:
    other = ConvTask(LARGE.workload, resolve_target("llvm"))
    result = MeasureResult((1e-6,), Status.OK, None, 0.1, 1e9, DEVICE)
    tuner, plain = XGBTuner(LARGE, seed=1), XGBTuner(LARGE, seed=1)
    tuner.load_history(
        [Record.of(MeasureInput(other.target, other, config), result) for config in other.space.configs[:20]]
    )
    assert tuner.next_batch(8) == plain.next_batch(8)


@pytest.mark.parametrize("task", [LARGE, ConvTask(LARGE.workload, resolve_target("llvm"))], ids=["cuda", "cpu"])
def test_features_are_numbers_that_tell_configurations_apart(task: Task) -> None:
    rows = matrix(task, task.space.configs)
    assert rows.shape[0] == len(task.space.configs)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_missing_xgboost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingPackageError, match=r"XGBTuner needs xgboost: pip install 'tvmconv\[tune\]'"):
        XGBTuner(SMALL)
