"""Several devices at once: those that measure, the trials that each gets, and the effect of a failure on the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.autotvm.faulty_kernels import HANGS, TASK, TRIAL, built, library
from tests.shared.pretended import Scripted
from tvmconv.autotvm import session, task
from tvmconv.autotvm.measure import AHEAD, MeasureInput, MeasureResult, Stage, Status, measure_option
from tvmconv.autotvm.measure import runner as runner_module
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.measure.runner import LocalRunner, chosen_devices
from tvmconv.autotvm.record import load_from_file
from tvmconv.autotvm.tuner import GridSearchTuner, XGBTuner
from tvmconv.autotvm.tuner.tuner import Tuner
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import DeviceFacts

pytestmark = pytest.mark.usefixtures("without_torch")

TRIALS = [MeasureInput(TASK.target, TASK, config) for config in TASK.space.configs[:40]]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRunner]:
    """Return a runner that takes this machine's CPU for two devices."""
    monkeypatch.setattr(runner_module, "chosen_devices", lambda kind, chosen: (0, 1))
    runner = LocalRunner(number=1, repeat=2, min_repeat_ms=0, timeout=3)
    yield runner
    runner.close()


def test_each_device_has_a_process_and_a_failure_ends_that_one_alone(
    builder: LocalBuilder, pretended: LocalRunner, tmp_path: Path
) -> None:
    sound = built(builder, TASK.workload)
    assert pretended.begin(TASK) == 2
    first, second = pretended._processes["llvm"]
    assert (first.device, second.device) == ("cpu:0", "cpu:1")
    sleeps = library(tmp_path, HANGS)
    with ThreadPoolExecutor(2) as threads:
        hanging = threads.submit(pretended.run, TRIAL, sleeps)
        while pretended._free["llvm"].qsize() == 2:
            time.sleep(0.01)
        pool = second.start()
        others = [pretended.run(TRIAL, sound) for _ in range(3)]
        assert not hanging.done(), "others run on the second device meanwhile"
        assert hanging.result().status is Status.RUN_TIMEOUT
    assert [other.status for other in others] == [Status.OK] * 3
    assert second.start() is pool
    assert [pretended.run(TRIAL, sound).status for _ in range(2)] == [Status.OK] * 2


@pytest.mark.usefixtures("one_round")
def test_tuning_on_two_devices_logs_every_trial_once(
    builder: LocalBuilder, pretended: LocalRunner, tmp_path: Path
) -> None:
    log, option = tmp_path / "log.jsonl", measure_option(builder, pretended)
    for trials in (3, 6):
        (summary,) = session.tune_tasks([TASK], log, option, tuner="random", trials=trials, seed=0)
        assert summary.trials == trials
    found = load_from_file(log)
    searched = [record.config.entity for record in found.records if record.stage is Stage.SEARCH]
    assert len(searched) == len(set(searched)) == 6
    assert (found.under_way, found.skipped) == ([], {})
    assert {record.status for record in found.records} == {Status.OK}


def test_all_slots_run_and_builds_go_on_meanwhile() -> None:
    scripted = Scripted(lambda index: time.sleep(0.005 if index else 0.2))
    results = dict(measure_option(scripted, scripted).measure(TRIALS, lambda trial: None))
    scripted.close()
    assert set(results) == set(TRIALS)
    assert scripted.most == 2
    assert scripted.of("begun")[0] == 0, "the first trial, however long its build takes"
    during = scripted.events[: scripted.events.index(("ended", 0))]
    assert sum(event == "ended" for event, _ in during) >= 5, "the other slot runs on"
    assert sum(event == "built" for event, _ in during) >= 8


def test_inputs_are_asked_for_when_there_is_room() -> None:
    """For each of two slots eight trials are built or wait, one runs and one waits behind it."""
    scripted, asked, known = Scripted(), [0], [0]

    def inputs() -> Iterator[MeasureInput]:
        for trial in TRIALS:
            asked[0] += 1
            yield trial

    most = 0
    for _ in measure_option(scripted, scripted).measure(inputs(), lambda trial: None):
        most = max(most, asked[0] - known[0])
        known[0] += 1
    scripted.close()
    assert known[0] == len(TRIALS)
    assert 2 < most <= 2 * AHEAD + 4


class Watched(GridSearchTuner):
    """A tuner that notes how many trials had ended when it proposed a batch."""

    def __init__(self, of: task.Task) -> None:
        super().__init__(of)
        self.known: list[int] = []

    def next_batch(self, size: int) -> list[object]:
        self.known.append(self.trials)
        return super().next_batch(size)


def test_the_next_batch_is_proposed_before_the_last_one_ends() -> None:
    scripted, tuner = Scripted(), Watched(TASK)
    tuner.tune(40, measure_option(scripted, scripted))
    scripted.close()
    assert tuner.trials == 40
    assert tuner.known[0] == 0
    proposed = [16 * batch for batch in range(len(tuner.known))]
    assert any(known < before for known, before in zip(tuner.known[1:], proposed[1:], strict=True))
    assert all(before - known <= 2 * AHEAD + 4 for known, before in zip(tuner.known, proposed, strict=True))


@pytest.mark.parametrize("tuner_type", [GridSearchTuner, XGBTuner])
def test_a_search_that_stops_takes_back_what_was_not_measured(tuner_type: type[Tuner]) -> None:
    scripted, tuner = Scripted(failing=frozenset({3})), tuner_type(TASK, seed=0)
    ended: list[MeasureResult] = []

    def note(of: Tuner, inputs: object, results: list[MeasureResult]) -> None:
        ended.extend(result for result in results if result.status is not Status.STARTED)

    option = measure_option(scripted, scripted)
    tuner.tune(30, option, callbacks=[note], stop=lambda: len(ended) >= 7)
    assert tuner.trials == len(ended) <= 11  # two ran, and two waited
    assert list(tuner.unmeasured) == [config for config in TASK.space.configs if config not in tuner.costs]
    tuner.tune(30, option)
    scripted.close()
    assert tuner.trials == 30
    begun = scripted.of("begun")
    searched = begun[: len(begun) - len(tuner._finalists()) * 3]
    assert len(searched) == len(set(searched))


def gpus(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def facts(kind: str, number: int) -> DeviceFacts | None:
        return DeviceFacts(names[number], "580") if number < len(names) else None

    monkeypatch.setattr(runner_module, "device_facts", facts)


def test_all_gpus_like_the_first_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, "H200", "H200")
    assert chosen_devices("cuda", None) == (0, 1)
    assert chosen_devices("cuda", (1,)) == (1,)
    gpus(monkeypatch, "H200", "A100", "H200")
    with pytest.warns(UserWarning, match="on GPU 0, 2 alone, as others differ: 0: H200, 1: A100, 2: H200"):
        assert chosen_devices("cuda", None) == (0, 2)
    assert chosen_devices("cuda", (1,)) == (1,)
    gpus(monkeypatch)
    assert chosen_devices("cuda", None) == chosen_devices("cuda", (0,)) == ()
    assert chosen_devices("llvm", None) == (0,)


@pytest.mark.parametrize("chosen", [(0, 1), (3,), (-1,), (0, 0), ()], ids=str)
def test_devices_that_cannot_measure_together_are_refused(
    chosen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, "H200", "A100", "H200")
    with pytest.raises(InvalidArgumentError, match="devices is .* numbers of GPUs of one model; there are 0: H200"):
        chosen_devices("cuda", chosen)


def test_a_cpu_is_one_device() -> None:
    with pytest.raises(InvalidArgumentError, match="a CPU, which is one device"):
        chosen_devices("llvm", (0,))
