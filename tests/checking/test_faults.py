"""Faults of a machine while tvmconv works on it: nothing is lost, and the message says what to do."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest

import tvmconv as library
from tests.shared.command_line import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.pretended import TASK, WORKLOAD, Instant
from tests.shared.records import record
from tvmconv.autotvm import session, tidy
from tvmconv.autotvm.measure import BuildResult, MeasureInput, Stage, Status, measure_option, worker
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.measure.runner import LocalRunner
from tvmconv.autotvm.record import append, load_from_file
from tvmconv.lowering.workspace import NO_WORKSPACE
from tvmconv.problem.errors import NoDeviceError
from tvmconv.runtime import storage
from tvmconv.testing import check_result, random_operands

pytestmark = pytest.mark.usefixtures("without_torch")

ROOT = Path(__file__).parents[2]


def killed(script: str, *arguments: object) -> None:
    """Run a script that ends itself by kill -9."""
    path = f"import os, sys; sys.path.insert(0, {str(ROOT)!r})"
    header = f"{path}; die = lambda: os.kill(os.getpid(), 9)\n"
    command = [sys.executable, "-c", header + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr


@pytest.mark.parametrize(("write", "stage"), [(3, "started"), (9, "search"), (70, "confirm")])
def test_killed_while_a_line_is_written(write: int, stage: str, tmp_path: Path) -> None:
    """Only the torn line is lost, and the next run repeats no trial of the search that had ended."""
    log = tmp_path / "log.jsonl"
    killed(
        "from tests.shared.pretended import TASK, Instant; from tvmconv.autotvm import session\n"
        "writes, whole = iter(range(10**6)), os.write\n"
        "def torn(descriptor, data):\n"
        "    if len(data) < 100 or next(writes) < int(sys.argv[2]): return whole(descriptor, data)\n"
        "    whole(descriptor, data[:len(data) // 2]); die()\n"
        "os.write = torn\n"
        "session.tune_tasks([TASK], sys.argv[1], Instant(), tuner='random', trials=30, seed=0)",
        log,
        write,
    )
    before = load_from_file(log)
    assert before.skipped == {"torn": 1}
    stages = {one.stage.value for one in before.records} | {one.status.value for one in before.under_way}
    assert stage in stages
    option = Instant()
    (summary,) = session.tune_tasks([TASK], log, option, tuner="random", trials=30, seed=0)
    after = load_from_file(log)
    assert after.records[: len(before.records)] == before.records
    searched = [one.config.entity for one in after.records if one.stage is Stage.SEARCH]
    assert len(searched) == len(set(searched)) == summary.trials == 30


@pytest.mark.parametrize("stage", ["storage._link", "Path.replace"])
def test_killed_while_exporting(stage: str, tmp_path: Path) -> None:
    path = tmp_path / "operator.so"
    path.write_text("before")
    killed(
        "from pathlib import Path; import tvmconv; from tvmconv.runtime import storage\n"
        "from tests.shared.pretended import WORKLOAD\n"
        f"{stage} = lambda *given: die()\n"
        "tvmconv.compile(WORKLOAD).save(sys.argv[1])",
        path,
    )
    assert path.read_text() == "before"
    library.compile(WORKLOAD).save(path)
    operands = random_operands(WORKLOAD)
    check_result(WORKLOAD, operands, library.load(path)(operands["x"], operands["w"]))


def test_killed_while_a_log_is_compacted(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, [record(index) for index in range(3)])
    before = log.read_bytes()
    killed(
        "from pathlib import Path; from tvmconv.autotvm import tidy; Path.replace = lambda *given: die()\n"
        "tidy.rewrite(sys.argv[1], tidy.compacted)",
        log,
    )
    assert log.read_bytes() == before
    assert tidy.rewrite(log, tidy.compacted) == [record(0)]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files, which fails as a full disk does.

    Python keeps no bytecode meanwhile: it would keep the first bytes of it, which no later process can import.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_while_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    append(log, [record(index) for index in range(3)])
    with largest_file(log.stat().st_size + 100), pytest.raises(OSError, match="log.jsonl") as caught:
        append(log, [record(3)])
    assert caught.value.errno == errno.EFBIG
    append(log, [record(4)])
    found = load_from_file(log)
    assert [one.config.index for one in found.records] == [0, 1, 2, 4]
    assert found.skipped == {"torn": 1}


def test_a_report_that_finds_no_space(tmp_path: Path) -> None:
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    append(log, [record(0)])
    page.write_text("before")
    with largest_file(1000):
        result = tvmconv("report", log, "-o", page)
    assert result.exit_code == 1
    assert "free some space, then run the command again" in result.stderr
    assert page.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "page.html"]


class Usage(NamedTuple):
    free: int


def test_a_full_disk_is_found_before_the_compiler_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM would end the process."""
    graph, model = Graph((1, 4, 8, 8)), tmp_path / "model.onnx"
    onnx.save(graph.model(graph.conv("x", (4, 1, 3, 3), group=4)), model)
    builder = LocalBuilder(n_parallel=1)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: Usage(2**20))
    result = tvmconv("build", model, "-o", tmp_path / "model.so")
    assert result.exit_code == 1
    assert "less than 64 MiB are free" in result.stderr
    assert "free some space, then run the command again" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    with pytest.raises(OSError, match="64 MiB"):
        builder.build(MeasureInput(TASK.target, TASK, TASK.space.default))
    builder.close()


def test_a_builder_that_runs_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial fails, and the next one is built."""
    flag, sound = tmp_path / "poor", worker.initialize
    flag.touch()

    def initialize() -> None:
        sound()
        if os.path.exists(flag):  # noqa: PTH110 (no name of this module is there)
            used = int(open("/proc/self/statm").read().split()[0]) * 4096  # noqa: PTH123, SIM115
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))

    monkeypatch.setattr(worker, "initialize", initialize)
    builder, trial = LocalBuilder(n_parallel=1), MeasureInput(TASK.target, TASK, TASK.space.default)
    assert builder.build(trial).exception() is not None
    flag.unlink()
    builder.close()
    builder = LocalBuilder(n_parallel=1)
    assert Path(builder.build(trial).result().library).stat().st_size > 1000
    builder.close()


def test_a_builder_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system kills it where memory is short: one trial fails, and the next one is built and run."""
    flag, sound = tmp_path / "short", worker.initialize
    flag.touch()

    def initialize() -> None:
        sound()
        if os.path.exists(flag):  # noqa: PTH110 (no name of this module is there)
            os.kill(os.getpid(), 9)

    monkeypatch.setattr(worker, "initialize", initialize)
    option = measure_option(LocalBuilder(n_parallel=1), LocalRunner(number=1, repeat=1, min_repeat_ms=0))
    results = []
    for _ in range(2):
        ((_, result),) = option.measure([MeasureInput(TASK.target, TASK, TASK.space.default)], lambda trial: None)
        results.append(result)
        flag.unlink(missing_ok=True)
    option.close()
    assert [one.status for one in results] == [Status.CRASH, Status.OK]
    assert results[0].reason == "the process that built it died"


def test_a_device_that_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is not taken for the failure of a configuration."""

    def touch(device: str) -> None:
        raise RuntimeError("CUDA: device lost")

    monkeypatch.setattr(worker, "touch", touch)
    (tmp_path / "kernel.so").write_text("what fails when it is run")
    build = BuildResult(str(tmp_path / "kernel.so"), NO_WORKSPACE, 0.0)
    runner = LocalRunner(number=1, repeat=1, min_repeat_ms=0)
    with pytest.raises(NoDeviceError, match="device lost.*the same command goes on where it was"):
        runner.run(MeasureInput(TASK.target, TASK, TASK.space.default), build)
    runner.close()


def test_two_tuners_on_one_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    options = [Instant(seconds=0.002) for _ in range(2)]
    summaries: list[Any] = []

    def tune(seed: int) -> None:
        summaries.extend(session.tune_tasks([TASK], log, options[seed], tuner="random", trials=25, seed=seed))

    threads = [threading.Thread(target=tune, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = load_from_file(log)
    assert (found.skipped, found.under_way) == ({}, [])
    assert len(found.records) == sum(len(option.measured) for option in options)
    assert len(summaries) == 2
    assert all(one.status is Status.OK for one in found.records)
