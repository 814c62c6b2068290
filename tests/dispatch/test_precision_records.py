"""Precision in tuning records, in the choice of a template by them, and in the tuner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tvmconv as library
from tvmconv import ConvWorkload, autotvm, dispatch
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status, worker
from tvmconv.autotvm.simulator import ReplayedTask
from tvmconv.dispatch import selection as selecting
from tvmconv.dispatch.history import History
from tvmconv.dispatch.record import Record, append, decode, encode, load_from_file
from tvmconv.problem import Problem
from tvmconv.problem.precision import WORDS
from tvmconv.schedules import cpu
from tvmconv.targets import device_facts, resolve_target
from tvmconv.testing import Sample

WORKLOAD = ConvWorkload.conv2d((1, 8, 12, 12), (16, 8, 3, 3))
HALF = ConvWorkload.conv2d((1, 8, 12, 12), (16, 8, 3, 3), dtype="float16")
CPU = resolve_target("llvm")
HERE = device_facts("llvm")

any_word = pytest.mark.parametrize("word", WORDS)
pytestmark = pytest.mark.usefixtures("without_torch")


def record_of(word: str, config: Any, cost: float = 1e-6, workload: ConvWorkload = WORKLOAD) -> Record:
    task = autotvm.create(workload, CPU, "direct", precision=word)
    result = MeasureResult((cost,), Status.OK, None, 0.1, 1.0, HERE)
    return Record.of(MeasureInput(task.target, task, config, Stage.CONFIRM), result)


def configs() -> Sequence[Any]:
    default, *others = autotvm.create(WORKLOAD, CPU, "direct").space.configs
    return [each for each in others if each != default]


@any_word
def test_record_holds_it_where_it_is_not_float32(word: str) -> None:
    line = encode(record_of(word, configs()[0]))
    assert (b'{"precision":' in line) is (word != "float32")
    assert decode(line).problem == Problem(WORKLOAD, precision=word)
    assert ReplayedTask.of([decode(line)]).problem == Problem(WORKLOAD, precision=word)


def test_record_with_a_word_that_there_is_not_is_foreign(tmp_path: Path) -> None:
    line = encode(record_of("tf32", configs()[0]))
    strict_half = encode(record_of("float32", configs()[0], workload=HALF)).replace(b"{}]", b'{"precision":"strict"}]')
    assert b"strict" in strict_half
    (tmp_path / "log").write_bytes(line + line.replace(b'"tf32"', b'"tf16"') + strict_half)
    log = load_from_file(tmp_path / "log")
    assert (len(log), log.skipped) == (1, {"foreign": 2})


def test_records_of_the_word_come_first(tmp_path: Path) -> None:
    """Others serve where there are none: a template's kernels are fast with the same configurations."""
    first, second, third = configs()[:3]
    log = tmp_path / "log"
    append(log, [record_of("float32", first, 1e-6), record_of("tf32", second, 9e-6)])
    with autotvm.apply_history_best(log):
        chosen = {word: dispatch.select(Problem(WORKLOAD, precision=word), CPU, algorithm="direct") for word in WORDS}
    assert [selection.config for selection in chosen.values()] == [first, first, second]
    cost = f"1.00 µs on {HERE} ({log})"
    assert chosen["strict"].reason == f"tuned for float32: {cost}; precision strict"
    assert chosen["float32"].reason == f"tuned: {cost}"
    assert chosen["tf32"].reason == f"tuned: {cost.replace('1', '9', 1)}; precision tf32"
    append(log, [record_of("strict", third)])
    with autotvm.apply_history_best(log):
        assert dispatch.select(Problem(WORKLOAD, precision="strict"), CPU, algorithm="direct").config == third
    plain = ConvWorkload.conv2d((1, 8, 12, 12), (16, 8, 3, 3), activation="relu")
    with autotvm.apply_history_best(log):
        assert dispatch.select(Problem(plain, precision="tf32"), CPU, algorithm="direct").config == second


class Coarse:
    """A template like cpu/direct for TF32 alone, and by its estimate faster."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cpu.direct.template, name)

    class Config(cpu.direct.Config):
        pass

    def obstacle(self, problem: Problem, target: Any) -> str | None:
        return None if problem.precision == "tf32" else "is for TF32"

    def estimate(self, problem: Problem, config: Any, target: Any) -> float:
        return 1.0


def test_records_of_another_word_do_not_hide_a_faster_template(tmp_path: Path) -> None:
    """One that was not measured, by its estimate; what is measured with the word itself comes before it."""
    log = tmp_path / "log"
    append(log, [record_of("float32", configs()[0])])
    dispatch.register("cpu/coarse", Coarse())
    try:
        with autotvm.apply_history_best(log):
            names = [dispatch.select(Problem(WORKLOAD, precision=word), CPU).name for word in WORDS]
        assert names == ["cpu/direct", "cpu/direct", "cpu/coarse"]
        append(log, [record_of("tf32", configs()[0])])
        with autotvm.apply_history_best(log):
            assert dispatch.select(Problem(WORKLOAD, precision="tf32"), CPU).name == "cpu/direct"
    finally:
        dispatch.unregister("cpu/coarse")


def test_a_shipped_log_does_not_hide_a_much_faster_template_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a user has tuned does: it was the user's choice."""
    log, problem = tmp_path / "log", Problem(WORKLOAD, precision="tf32")
    append(log, [record_of("tf32", configs()[0])])
    history = History(load_from_file(log), "a log")
    dispatch.register("cpu/coarse", Coarse())
    try:
        monkeypatch.setattr(selecting, "shipped", lambda: history)
        selection = dispatch.select(problem, CPU)
        assert selection.name == "cpu/coarse"
        assert "times as fast as cpu/direct, tuned: " in selection.reason
        with autotvm.apply_history_best(log):
            assert dispatch.select(problem, CPU).name == "cpu/direct"
        monkeypatch.setattr(selecting, "MUCH_FASTER", 1e12)
        assert dispatch.select(problem, CPU).name == "cpu/direct"
    finally:
        dispatch.unregister("cpu/coarse")


@pytest.mark.usefixtures("one_round")
def test_tuner_tunes_it_in_other_processes(builder: autotvm.LocalBuilder, tmp_path: Path) -> None:
    log, task = tmp_path / "log", autotvm.create(WORKLOAD, "llvm", precision="tf32")
    runner = autotvm.LocalRunner(number=1, repeat=1)
    (summary,) = autotvm.tune_tasks([task], log, autotvm.measure_option(builder, runner), tuner="random", trials=2)
    runner.close()
    assert (summary.trials, summary.failures) == (2, {})
    assert {record.problem for record in load_from_file(log)} == {Problem(WORKLOAD, precision="tf32")}
    with autotvm.apply_history_best(log):
        assert library.compile(WORKLOAD, precision="tf32").selection.reason.startswith("tuned: ")


def test_trials_have_the_bound_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker checks what it has run by the precision of the task."""
    checked: list[Problem] = []

    class Noted(Sample):
        def __init__(self, problem: Problem, *rest: Any) -> None:
            checked.append(problem)
            super().__init__(problem, *rest)

    monkeypatch.setattr(worker, "Sample", Noted)
    problem, device = Problem(WORKLOAD, precision="tf32"), worker.tvm.cpu()
    kernel = worker.build_kernel(problem, dispatch.select(problem, CPU), CPU)
    worker._checked(problem, kernel.workspace, kernel.executable.jit(), device)
    assert checked == [problem]
