"""`tvmconv tune`: its plan, its log, resumed runs, its output, and its end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import onnx
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.network_graph import Graph
from tests.shared.pretended import TASK, WORKLOAD, Instant
from tvmconv.autotvm import record, session
from tvmconv.autotvm.measure import Stage, Status
from tvmconv.cli import main
from tvmconv.cli.tune import Measuring
from tvmconv.dispatch.task import Entity
from tvmconv.problem.dtypes import FLOATS
from tvmconv.targets import DeviceFacts, device_facts

ONE = ["--workload", WORKLOAD.to_json(), "--tuner", "random"]


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> Instant:
    """Pretend the measuring of the command."""
    option = Instant()
    monkeypatch.setattr(Measuring, "option", lambda self: option)
    return option


def searched(log: Path) -> list[Entity]:
    """Return the configurations of the search that the log has, in its order."""
    return [one.config.entity for one in record.load_from_file(log).records if one.stage is Stage.SEARCH]


def test_command_knows_the_tuners() -> None:
    (option,) = [parameter for parameter in main.commands["tune"].params if parameter.name == "tuner"]
    assert list(option.type.choices) == list(session.TUNERS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("trials", "sizes", "expected"),
    [
        (90, [100, 100, 100], [30, 30, 30]),
        (100, [1000, 20, 1000], [40, 20, 40]),
        (100, [10, 20], [10, 20]),
        (2, [5, 5, 5], [0, 1, 1]),
        (11, [5, 5], [5, 5]),
    ],
)
def test_shares(trials: int, sizes: list[int], expected: list[int]) -> None:
    assert session.shares(trials, sizes) == expected


def test_tune_then_resume(tmp_path: Path, instant: Instant) -> None:
    """Trials are a total: the same command again measures nothing, more trials measure the difference."""
    log = tmp_path / "log.jsonl"
    report = tvmconv_json("tune", *ONE, "-o", log, "--trials", 20)
    (found,) = report["tasks"]
    assert report["device"] == msgspec.to_builtins(device_facts("llvm"))
    assert found["default_seconds"] == pytest.approx(100e-6)
    assert found["times"] == pytest.approx(found["default_seconds"] / found["best_seconds"])
    assert found["best_seconds"] <= found["default_seconds"]
    assert found["spread"] == pytest.approx(0.2)
    assert (found["trials"], found["failures"]) == (20, {})
    first = searched(log)
    assert len(first) == len(set(first)) == 20
    assert instant.measured[0] == 0
    confirmed = [one for one in record.load_from_file(log).records if one.stage is Stage.CONFIRM]
    assert len(confirmed) == 6 * 3

    instant.measured.clear()
    assert tvmconv_json("tune", *ONE, "-o", log, "--trials", 20) == report
    assert instant.measured == []
    (more,) = tvmconv_json("tune", *ONE, "-o", log, "--trials", 1000)["tasks"]
    every = searched(log)
    assert every[:20] == first
    assert len(every) == len(set(every)) == more["trials"] == len(TASK.space.configs)
    assert more["best_seconds"] == pytest.approx(1e-6)
    assert more["config"] == msgspec.to_builtins(TASK.space.configs[7])


def test_display_without_a_terminal(tmp_path: Path, instant: Instant) -> None:
    result = tvmconv("tune", *ONE, "-o", tmp_path / "log.jsonl", "--trials", 9)
    header, row = result.stdout.splitlines()
    assert header.split("  ")[0] == "#"
    assert str(WORKLOAD) in row
    measuring, begin, end = result.stderr.splitlines()
    assert "caches are warm" in measuring
    assert begin == f"task 1/1 {WORKLOAD}: up to 9 trials"
    assert end.startswith(f"task 1/1 {WORKLOAD}: 9/9 trials, best ")
    assert "default 100 µs" in end
    assert not set(result.stderr) & {"\r", "\x1b"}


def test_display_on_a_terminal(tmp_path: Path, instant: Instant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    instant.failing = lambda index: index % 2 == 1
    instant.seconds = 0.005
    stderr = tvmconv("tune", *ONE, "-o", tmp_path / "log.jsonl", "--trials", 9).stderr
    assert "\x1b[" in stderr
    for shown in ("━", "trials/s", "0:00:00 left", "crash", "measuring the best again"):
        assert shown in stderr
    last = re.sub(r"\x1b\[\d*[AK]", "", stderr.splitlines()[-1])
    assert last.startswith(f"task 1/1 {WORKLOAD}: 9/9 trials, best ")


def test_dry_run(tmp_path: Path, instant: Instant) -> None:
    log = tmp_path / "log.jsonl"
    suite = ["--suite", "depthwise-networks", "--batch", 1, "-o", log, "--trials", 40]
    plan = tvmconv_json("tune", *suite, "--tasks", "2,5-6", "--dry-run")["tasks"]
    assert [task["number"] for task in plan] == [2, 5, 6]
    assert all((task["workload"]["batch"], task["workload"]["dtype"]) == (1, "float32") for task in plan)
    for dtype in FLOATS:
        (task,) = tvmconv_json("tune", *suite, "--dtype", dtype, "--tasks", 1, "--dry-run")["tasks"]
        assert task["workload"]["dtype"] == dtype
    assert sorted(task["to_do"] for task in plan) == [13, 13, 14]
    assert not log.exists()
    tvmconv_json("tune", *suite, "--tasks", "5-6", "--tuner", "random")
    plan = tvmconv_json("tune", *suite, "--tasks", "2,5-6", "--dry-run")["tasks"]
    assert [(task["in_log"], min(task["to_do"], 1)) for task in plan] == [(0, 1), (20, 0), (20, 0)]
    header, *rows = tvmconv("tune", *suite, "--dry-run").stdout.splitlines()
    assert header.split()[:3] == ["#", "workload", "layers"]
    assert len(rows) == 6


def test_model(tmp_path: Path, instant: Instant) -> None:
    """Equal layers are one task; a model without any that tvmconv schedules is refused."""
    path, log = tmp_path / "model.onnx", tmp_path / "log.jsonl"
    graph = Graph((1, 4, 8, 8, 8))
    onnx.save(graph.model(graph.conv("x", (4, 4, 3, 3, 3))), path)
    assert "expected a model with a convolution" in tvmconv("tune", path, "-o", log).stderr
    graph = Graph((1, 4, 8, 8))
    twice = graph.conv(graph.conv("x", (4, 1, 3, 3), group=4, pads=[1] * 4), (4, 1, 3, 3), group=4, pads=[1] * 4)
    onnx.save(graph.model(graph.conv(twice, (4, 1, 3, 3), group=4)), path)
    plan = tvmconv_json("tune", path, "-o", log, "--dry-run")["tasks"]
    assert [(task["layers"], len(task["workload"]["padding"])) for task in plan] == [(2, 4), (1, 4)]


def test_algorithm(tmp_path: Path) -> None:
    """The option is for convolutions whose channels meet and that it takes; the others keep theirs."""
    path, log = tmp_path / "model.onnx", tmp_path / "log.jsonl"
    graph = Graph((1, 4, 8, 8))
    depthwise = graph.conv("x", (4, 1, 3, 3), group=4)
    onnx.save(graph.model(graph.conv(graph.conv(depthwise, (8, 4, 1, 1)), (4, 8, 3, 3))), path)
    for algorithm, *names in (
        ("auto", "pointwise", "direct"),
        ("direct", "direct", "direct"),
        ("im2win", "im2win", "im2win"),
        ("pointwise", "pointwise", "direct"),
    ):
        how = ["--dry-run", "--algorithm", algorithm, "--target", '{"kind": "llvm", "mcpu": "znver5"}']
        plan = tvmconv_json("tune", path, "-o", log, *how)["tasks"]
        assert [task["schedule"] for task in plan] == ["cpu/depthwise", *(f"cpu/{name}" for name in names)]


def test_what_the_log_has_beside_is_told(tmp_path: Path, instant: Instant) -> None:
    log = tmp_path / "log.jsonl"
    tvmconv_json("tune", *ONE, "-o", log, "--trials", 3)
    there = record.load_from_file(log).records
    log.unlink()
    begun = msgspec.structs.replace(there[2], status=Status.STARTED, result=((), 8, 0.0, 0.0))
    other = DeviceFacts("another CPU", threads=1)
    record.append(log, [*(msgspec.structs.replace(one, device=other) for one in there), begun])
    with log.open("ab") as file:
        file.write(b"{}\nno record\n" + record.encode(there[0])[:40])
    instant.measured.clear()
    result = tvmconv("tune", *ONE, "-o", log, "--trials", 3)
    assert len(instant.measured) == 3 + 3 * 3
    lines = result.stderr.splitlines()
    assert lines[0] == f"{log}: lines left out: 2 of another format, 1 cut off"
    assert lines[1].startswith(f"never ended in an earlier run: {WORKLOAD}, tiles=")
    assert lines[2] == f"{log}: {len(there)} records are not used: measured on another CPU, 1 thread"


def test_time_budget(tmp_path: Path, instant: Instant) -> None:
    """The budget ends the search, not the confirmation."""
    log = tmp_path / "log.jsonl"
    instant.seconds = 0.02
    (found,) = tvmconv_json("tune", *ONE, "-o", log, "--trials", 60, "--time-budget", 0.4)["tasks"]
    assert 1 <= found["trials"] < 60
    confirmed = Counter(one.config.index for one in record.load_from_file(log).records if one.stage is Stage.CONFIRM)
    assert confirmed[0] == 3
    assert set(confirmed.values()) == {3}


def test_a_time_budget_too_short_for_a_trial(tmp_path: Path, instant: Instant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that has begun measures its default configuration, though the time may be over before that."""
    begins = iter([0.0, 0.0])
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(begins, 10.0)))
    (found,) = tvmconv_json("tune", *ONE, "-o", tmp_path / "log.jsonl", "--trials", 60, "--time-budget", 5)["tasks"]
    assert found["trials"] == 1
    assert set(instant.measured) == {0}


def test_a_task_that_never_works(tmp_path: Path, instant: Instant) -> None:
    instant.failing = lambda index: True
    result = tvmconv("tune", *ONE, "-o", tmp_path / "log.jsonl", "--trials", 3)
    assert result.exit_code == 4
    assert "3 crash" in result.stdout
    assert "error: no trial of task 1 worked" in result.stderr


USAGE = [
    ([], "give exactly one of MODEL, --suite and --workload"),
    (["--suite", "depthwise-networks", "--workload", "{}"], "give exactly one of"),
    (["--workload", "{}", "--batch", "2"], "--batch goes with --suite"),
    (["--workload", "{}", "--dtype", "float16"], "--dtype goes with --suite"),
    (["--workload", "{}", "--rpc-key", "gpu"], "--rpc-tracker and --rpc-key go together"),
    (["--workload", "{}", "--rpc-key", "gpu", "--rpc-tracker", "here"], "not of the form HOST:PORT"),
    (["--workload", "{}", "--devices", "0;1"], "not of the form 1,3-5"),
    (
        ["--workload", "{}", "--devices", "0", "--rpc-tracker", "here:9190", "--rpc-key", "gpu"],
        "--devices goes without --rpc-tracker",
    ),
    (["--workload", "{}", "--tasks", "1,x"], "not of the form 1,3-5"),
    (["--workload", "{}", "--tasks", "5-3"], "'5-3' is not of the form"),
    (["--workload", "{}", "--tasks", "1-99999999999"], "'1-99999999999' is not of the form"),
    (["--workload", "{}", "--time-budget", "nan"], "'nan' is not a number"),
    (["--workload", "{}", "-o", "absent/log.jsonl"], "there is no folder 'absent'"),
    (["--workload", "{}"], "workload is '{}'"),
    ([*ONE, "--tasks", "1-2"], "tasks is 2; expected numbers from 1 to 1"),
    ([*ONE, "-o", "README.md"], "log is 'README.md'; expected a tuning log"),
    ([*ONE, "-o", "log.jsonl.gz"], "which a compressed one cannot"),
    (["--suite", "absent"], "suite is 'absent'"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE, ids=[message[:30] for _, message in USAGE])
def test_wrong_usage(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: Instant
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("# not a log\n")
    result = tvmconv("tune", *(["-o", "log.jsonl"] if "-o" not in arguments else []), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert instant.measured == []
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_second_interrupt_ends_at_once() -> None:
    script = (
        "import signal; from tvmconv.cli.interrupts import interrupts\n"
        "with interrupts(lambda: print('first', flush=True)) as seen:\n"
        "    signal.raise_signal(signal.SIGINT); print(len(seen), flush=True)\n"
        "    signal.raise_signal(signal.SIGINT); print('second')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "first\n1\n")


@pytest.mark.usefixtures("without_torch")
def test_killed_then_interrupted_then_resumed(tmp_path: Path, instant: Instant) -> None:
    """After kill -9, Ctrl-C, and the command that is printed, no trial is lost and none is made twice."""
    log = tmp_path / "log.jsonl"
    measuring = ["--number", "1", "--repeat", "2", "--min-repeat-ms", "50", "--parallel", "1", "--trials", "14"]
    arguments = ["tune", *ONE, "-o", str(log), *measuring]

    def run(until: int) -> subprocess.Popen[str]:
        """Start the command and wait until the log has so many trials."""
        process = subprocess.Popen(
            [sys.executable, "-c", "from tvmconv.cli import main; main()", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and not (log.exists() and len(searched(log)) >= until):
            assert time.monotonic() < deadline, "no trial came to its end"
            time.sleep(0.02)
        return process

    killed = run(3)
    killed.kill()
    killed.communicate()
    first, begun = searched(log), record.load_from_file(log).under_way
    interrupted = run(len(first) + 3)
    interrupted.send_signal(signal.SIGINT)
    table, notes = interrupted.communicate()
    assert (killed.returncode, interrupted.returncode) == (-9, 130)
    then = searched(log)
    assert then[: len(first)] == first
    assert len(first) + 3 <= len(set(then)) == len(then) < 14
    assert all(one in begun for one in record.load_from_file(log).under_way)
    assert str(WORKLOAD) in table
    *_, resume, last = notes.splitlines()
    assert last == "interrupted"
    assert resume == f"to go on: {shlex.join(['tvmconv', *arguments])}"

    (found,) = tvmconv_json("tune", *shlex.split(resume.removeprefix("to go on: tvmconv tune ")))["tasks"]
    every = searched(log)
    assert every[: len(then)] == then
    assert found["trials"] == len(set(every)) == len(every) == 14
