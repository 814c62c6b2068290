"""Trials in worker processes: they are built and run, and may fail in every way."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autotvm.faulty_kernels import TASK, TRIAL, WORKLOAD, assert_told_apart, built, by_fault, library
from tests.shared.pretended import Scripted
from tvmconv import ConvWorkload
from tvmconv.autotvm import task
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Status, measure_option, worker
from tvmconv.autotvm.measure import runner as runner_module
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.measure.processes import WorkerPool
from tvmconv.autotvm.measure.runner import LocalRunner
from tvmconv.problem.errors import CompileError, MissingPackageError
from tvmconv.runtime import storage
from tvmconv.targets import DeviceFacts

pytestmark = pytest.mark.usefixtures("without_torch")


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner(number=2, repeat=3, min_repeat_ms=0, timeout=2)
    yield runner
    runner.close()


def test_trials_are_built_checked_and_timed(builder: LocalBuilder, runner: LocalRunner) -> None:
    trials = [MeasureInput(TASK.target, TASK, config) for config in TASK.space.configs[:3]]
    begun: list[MeasureInput] = []
    measured = dict(measure_option(builder, runner).measure(trials, begun.append))
    assert begun == trials
    assert set(measured) == set(trials)
    for result in measured.values():
        assert (result.status, result.reason, len(result.costs)) == (Status.OK, None, 3)
        assert 0 < result.cost < 0.01
        assert result.all_cost > sum(result.costs)


@by_fault
def test_failures_are_told_apart(tmp_path: Path, runner: LocalRunner, body: str, status: Status) -> None:
    assert_told_apart(runner, library(tmp_path, body), status)


def test_wrong_answers_and_errors_do_not_spoil_the_next_trial(builder: LocalBuilder, runner: LocalRunner) -> None:
    shifted = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3), padding=(1, 2, 1, 0), scale=True, activation="relu")
    wrong = runner.run(TRIAL, built(builder, shifted))
    assert wrong.status is Status.WRONG_ANSWER
    assert "elements are wrong" in str(wrong.reason)
    larger = ConvWorkload.depthwise((1, 4, 12, 13), (4, 1, 3, 3), scale=True)
    assert runner.run(TRIAL, built(builder, larger)).status is Status.RUNTIME_ERROR
    assert runner.run(TRIAL, built(builder, WORKLOAD)).status is Status.OK


def test_a_kernel_that_corrupts_memory_spoils_no_other_trial(
    builder: LocalBuilder, runner: LocalRunner, tmp_path: Path
) -> None:
    """A kernel that writes beyond its own memory fails in a process of its own, whatever its result."""
    body = "volatile char* own = (char*)malloc(16); for (int i = 0; i < 100000; i++) own[i] = i;"
    corrupt = runner.run(TRIAL, library(tmp_path, f"{body} return 0;"))
    assert corrupt.status in (Status.CRASH, Status.WRONG_ANSWER, Status.RUNTIME_ERROR, Status.RUN_TIMEOUT)
    assert runner.run(TRIAL, built(builder, WORKLOAD)).status is Status.OK


def test_a_segmentation_fault_ends_a_worker_without_another_word() -> None:
    """TVM's handler, which describes the fault, would wait for ever after one in the allocator."""
    script = "import ctypes; from tvmconv.autotvm.measure import worker; worker.initialize(); ctypes.string_at(0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")


def test_build_failures_are_results(runner: LocalRunner) -> None:
    def results(builder: LocalBuilder, config: object) -> MeasureResult:
        option = measure_option(builder, runner)
        ((_, result),) = option.measure([MeasureInput(TASK.target, TASK, config)], lambda trial: None)
        builder.close()
        return result

    illegal = results(LocalBuilder(n_parallel=1), TASK.template.Config(1, 8, 8, 16, False, 2, True))
    assert illegal.status is Status.BUILD_ERROR
    assert "constraints" in str(illegal.reason)
    slow = results(LocalBuilder(timeout=0.001, n_parallel=1), TASK.space.default)
    assert slow.status is Status.BUILD_TIMEOUT


def test_trials_that_run_when_the_tuner_stops_are_waited_for() -> None:
    stopped, begun, ended = threading.Event(), list[MeasureInput](), list[MeasureInput]()

    def run(index: int) -> None:
        if index == 0:
            assert stopped.wait(timeout=60)

    scripted = Scripted(run)
    trials = [MeasureInput(TASK.target, TASK, config) for config in TASK.space.configs[:20]]

    def stop() -> bool:
        if len(ended) >= 3:
            stopped.set()
        return stopped.is_set()

    for trial, _ in measure_option(scripted, scripted).measure(trials, begun.append, stop):
        ended.append(trial)
    scripted.close()
    # The first one runs on when three others have ended, and two wait behind those that run.
    assert 4 <= len(begun) <= 7
    assert set(ended) == set(begun)
    assert ended[-1] == begun[0]


def test_no_trial_begins_after_the_iteration_is_given_up(builder: LocalBuilder, runner: LocalRunner) -> None:
    begun: list[MeasureInput] = []
    trials = [MeasureInput(TASK.target, TASK, config) for config in TASK.space.configs[:4]]
    iteration = measure_option(builder, runner).measure(trials, begun.append)
    next(iteration)
    iteration.close()
    assert len(begun) == 1


def test_what_would_fail_in_every_trial_is_refused_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "device_facts", lambda kind, number: None if number else DeviceFacts("a GPU"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingPackageError, match="cuda-bindings"):
        LocalRunner().device(task.create(WORKLOAD, "cuda"))
    monkeypatch.setattr(storage, "find_compiler", lambda: None)
    with pytest.raises(CompileError, match="needs a C\\+\\+ compiler"):
        LocalBuilder()


def test_workers_start_without_torch_and_may_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM imports torch wherever it is installed: 2 seconds of each worker, and of each that follows a failure."""
    monkeypatch.delenv("PYTHONPATH")

    def imported() -> tuple[bool, float]:
        before = "torch" in sys.modules
        import torch

        return before, float(torch.ones(3).sum())

    pytest.importorskip("torch")
    pool = WorkerPool(1, 60, worker.initialize)
    assert pool.submit(imported).result() == (False, 3.0)
    pool.shutdown()
