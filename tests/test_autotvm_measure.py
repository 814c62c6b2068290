"""Trials in worker processes: what builds and runs, and every way in which one may fail."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tvmconv import ConvWorkload, storage
from tvmconv.autotvm import runner as runner_module
from tvmconv.autotvm import task
from tvmconv.autotvm.builder import LocalBuilder
from tvmconv.autotvm.measure import (
    BuildResult,
    MeasureInput,
    MeasureResult,
    Runner,
    RunResult,
    Status,
    measure_option,
)
from tvmconv.autotvm.runner import LocalRunner
from tvmconv.errors import CompileError, MissingPackageError
from tvmconv.storage import find_compiler
from tvmconv.targets import DeviceFacts
from tvmconv.workspace import NO_WORKSPACE

WORKLOAD = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3), padding=(1, 1, 1, 1), scale=True, activation="relu")
TASK = task.create(WORKLOAD, "llvm")
TRIAL = MeasureInput(TASK, TASK.space.default)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    builder = LocalBuilder(n_parallel=1)
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner(number=2, repeat=3, min_repeat_ms=0, timeout=2)
    yield runner
    runner.close()


by_fault = pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return 0;", Status.WRONG_ANSWER),
        ("for (volatile int i = 0;; i++);", Status.RUN_TIMEOUT),
        ("abort();", Status.CRASH),
        ("exit(0);", Status.CRASH),
    ],
    ids=["writes-nothing", "hangs", "aborts", "exits"],
)


def assert_told_apart(runner: Runner, library: BuildResult, status: Status) -> None:
    result = runner.run(TRIAL, library)
    assert (result.status, result.costs) == (status, ())
    assert result.reason


def library(folder: Path, body: str) -> BuildResult:
    """A library whose kernel is a line of C++."""
    source, path = folder / "kernel.cc", folder / "kernel.so"
    signature = 'extern "C" int __tvm_ffi_tvmconv_kernel(void*, void*, int, void*)'
    source.write_text(f"#include <cstdlib>\n{signature} {{ {body} }}\n")
    subprocess.run([*find_compiler(), "-shared", "-fPIC", "-O0", "-o", str(path), str(source)], check=True)
    return BuildResult(str(path), NO_WORKSPACE, 0.0)


def built(builder: LocalBuilder, workload: ConvWorkload) -> BuildResult:
    other = task.create(workload, "llvm")
    return builder.build(MeasureInput(other, other.space.default)).result()


def test_trials_are_built_checked_and_timed(builder: LocalBuilder, runner: LocalRunner) -> None:
    trials = [MeasureInput(TASK, config) for config in TASK.space.configs[:3]]
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
    """It writes over what lies behind its own memory: it fails, whatever comes of it, in a process of its own."""
    body = "volatile char* own = (char*)malloc(16); for (int i = 0; i < 100000; i++) own[i] = i;"
    corrupt = runner.run(TRIAL, library(tmp_path, f"{body} return 0;"))
    assert corrupt.status in (Status.CRASH, Status.WRONG_ANSWER, Status.RUNTIME_ERROR)
    assert runner.run(TRIAL, built(builder, WORKLOAD)).status is Status.OK


def test_a_segmentation_fault_ends_a_worker_without_another_word() -> None:
    """What describes it would wait for ever, if it happened in the allocator."""
    script = "import ctypes; from tvmconv.autotvm import worker; worker.initialize(); ctypes.string_at(0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")


def test_build_failures_are_results(runner: LocalRunner) -> None:
    def results(builder: LocalBuilder, config: object) -> MeasureResult:
        option = measure_option(builder, runner)
        ((_, result),) = option.measure([MeasureInput(TASK, config)], lambda trial: None)
        builder.close()
        return result

    illegal = results(LocalBuilder(n_parallel=1), TASK.template.Config(1, 8, 8, 16, False, 2, True))
    assert illegal.status is Status.BUILD_ERROR
    assert "constraints" in str(illegal.reason)
    slow = results(LocalBuilder(timeout=0.001, n_parallel=1), TASK.space.default)
    assert slow.status is Status.BUILD_TIMEOUT


@dataclass
class Instant:
    """A builder that builds nothing, and a runner of two slots; the first run lasts until the tuner stops."""

    n_parallel = 2
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))
    begun: list[MeasureInput] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def build(self, trial: MeasureInput) -> Future[BuildResult]:
        return self.pool.submit(BuildResult, "/nowhere/kernel.so", NO_WORKSPACE, 0.0)

    def begin(self, of: task.Task) -> int:
        return 2

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        if trial == self.begun[0]:
            assert self.stopped.wait(timeout=60)
        return RunResult((1e-6,))

    def device(self, of: task.Task) -> DeviceFacts:
        return DeviceFacts("none")

    def shares_cores(self, of: task.Task) -> bool:
        return False

    def close(self) -> None:
        self.pool.shutdown()


def test_trials_that_run_when_the_tuner_stops_are_waited_for() -> None:
    instant = Instant()
    ended: list[MeasureInput] = []
    trials = [MeasureInput(TASK, config) for config in TASK.space.configs[:20]]

    def stop() -> bool:
        if len(ended) >= 3:
            instant.stopped.set()
        return instant.stopped.is_set()

    for trial, _ in measure_option(instant, instant).measure(trials, instant.begun.append, stop):
        ended.append(trial)
    instant.close()
    # The first one runs on when three others have ended, and two wait behind those that run.
    assert 4 <= len(instant.begun) <= 7
    assert set(ended) == set(instant.begun)
    assert ended[-1] == instant.begun[0]


def test_no_trial_begins_after_the_iteration_is_given_up(builder: LocalBuilder, runner: LocalRunner) -> None:
    begun: list[MeasureInput] = []
    trials = [MeasureInput(TASK, config) for config in TASK.space.configs[:4]]
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
