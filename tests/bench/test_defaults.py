"""`tvmconv bench defaults`: the random workloads, and the report on the log of their tuning."""

from __future__ import annotations

import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import msgspec
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.pretended import Instant
from tvmconv import autotvm
from tvmconv.autotvm.measure import Stage
from tvmconv.autotvm.record import load_from_file
from tvmconv.bench.tuning import defaults
from tvmconv.cli.bench.defaults import report
from tvmconv.problem.workload import ConvWorkload

WORKLOADS = [ConvWorkload.depthwise((1, 4, size, size), (4, 1, 3, 3)) for size in (6, 7)]


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> Instant:
    """Pretend the measuring of the command, on two small workloads: defaults take 100 µs, the best 1 µs."""
    option = Instant()
    for name, made in {"LocalBuilder": None, "LocalRunner": None, "measure_option": option}.items():
        monkeypatch.setattr(autotvm, name, lambda *parts, made=made: made, raising=False)
    monkeypatch.setattr(defaults, "random_workloads", lambda count, *_: WORKLOADS[:count])
    return option


def test_random_workloads_are_the_same_everywhere() -> None:
    workloads = defaults.random_workloads(100, 0)
    first, last = "depthwise 44x16x14x25 -> 48, 9x9", "depthwise 16x78x90x27 -> 156, 6x6 stride 2x2 dilation 3x3"
    assert (str(workloads[0]), str(workloads[99])) == (first, last)
    assert defaults.random_workloads(10, 0) == workloads[:10]
    assert defaults.random_workloads(10, 1) != workloads[:10]


def test_random_workloads_are_of_every_kind() -> None:
    workloads = defaults.random_workloads(300, 0)
    assert len(set(workloads)) == 300

    def seen(of: Callable[[ConvWorkload], int]) -> set[int]:
        return set(Counter(map(of, workloads)))

    assert seen(lambda workload: workload.kernel[0]) == set(range(1, 12))
    assert seen(lambda workload: workload.stride[0]) == seen(lambda workload: workload.dilation[0]) == {1, 2, 3}
    assert seen(lambda workload: workload.multiplier) == {1, 2, 3, 4}
    assert seen(lambda workload: workload.output_size[1] % 2) == {0, 1}
    assert {1, 64} <= seen(lambda workload: workload.batch) <= set(range(1, 65))
    for workload in workloads:
        tensors = sum(map(prod, (workload.x_shape, workload.w_shape, workload.output_shape)))
        assert 2**20 <= 4 * tensors <= 2**26


def test_random_dense_workloads_are_the_same_everywhere_and_in_every_type() -> None:
    workloads = defaults.random_workloads(64, 0, dense=True)
    assert (str(workloads[0]), str(workloads[63])) == (
        "conv2d 37x440x9x12 -> 8, 3x3 stride 2x2",
        "conv2d 16x648x6x18 -> 64, 1x1 stride 2x2 dilation 2x2",
    )
    assert len(set(workloads)) == 64
    assert defaults.random_workloads(9, 0, dense=True) == workloads[:9]
    for dtype in ("float16", "bfloat16"):
        of_type = defaults.random_workloads(64, 0, True, dtype)
        assert {each.dtype for each in of_type} == {dtype}
        assert [msgspec.structs.replace(each, dtype="float32") for each in of_type] == workloads


def test_random_dense_workloads_are_of_every_kind() -> None:
    workloads = defaults.random_workloads(300, 0, dense=True)
    assert {each.kernel[0] for each in workloads} == {1, 3, 5, 7}
    assert {each.stride[0] for each in workloads} == {each.dilation[0] for each in workloads} == {1, 2}
    assert {each.groups for each in workloads} == {1, 2, 4, 8, 32}
    assert {each.multiplier % 8 == 0 for each in workloads} == {True, False}
    for workload in workloads:
        assert not workload.is_depthwise
        assert workload.flops <= defaults.MOST_FLOPS
        assert 2**20 <= workload.bytes_moved <= 2**26


def test_types_and_precisions(instant: Instant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def workloads(count: int, *rest: object) -> list[ConvWorkload]:
        asked.append(rest)
        return WORKLOADS[:count]

    monkeypatch.setattr(defaults, "random_workloads", workloads)
    log = tmp_path / "log.jsonl"
    command = ["bench", "defaults", "--workloads", 1, "--trials", 3, "-o", log]
    told = tvmconv_json(*command, "--dense", "--dtype", "float16", "--precision", "tf32")
    assert asked == [(0, True, "float16")]
    assert (told["dense"], told["dtype"], told["precision"]) == (True, "float16", "tf32")
    assert {record.problem.precision for record in load_from_file(log).records} == {"tf32"}


def test_distribution() -> None:
    assert defaults.quantiles([1.0, 3.0, 2.0]) == pytest.approx(
        {"0%": 1, "25%": 1.5, "50%": 2, "75%": 2.5, "90%": 2.8, "100%": 3}
    )


def test_tuned_then_resumed(tmp_path: Path, instant: Instant) -> None:
    """The report has the configurations that were measured again; the same command again measures nothing."""
    log = tmp_path / "log.jsonl"
    command = ["bench", "defaults", "--workloads", 2, "--trials", 400, "-o", log]
    told = tvmconv_json(*command)
    assert told["geometric_mean"] == pytest.approx(100)
    assert told["quantiles"] == pytest.approx(dict.fromkeys(["0%", "25%", "50%", "75%", "90%", "100%"], 100))
    assert [msgspec.convert(row["workload"], ConvWorkload) for row in told["rows"]] == WORKLOADS
    for row, workload in zip(told["rows"], WORKLOADS, strict=True):
        space = autotvm.create(workload, "llvm").space
        assert row["space"] == len(space.configs)
        assert (row["default"], row["best"]) == tuple(map(msgspec.to_builtins, (space.default, space.configs[7])))
        assert (row["default_seconds"], row["best_seconds"]) == pytest.approx((100e-6, 1e-6))

    instant.measured.clear()
    assert tvmconv_json(*command) == told
    assert instant.measured == []
    result = tvmconv(*command)
    assert "listing the spaces of 2 tasks\n" in result.stderr
    header, *rows, said = result.stdout.splitlines()
    assert header.split()[:2] == ["workload", "space"]
    assert [row.split("  ")[0] for row in rows] == [str(workload) for workload in WORKLOADS]
    assert said.startswith("times as long as the best, over 2 workloads on ")
    assert said.endswith(
        "geometric mean 100.000, 0% 100.000, 25% 100.000, 50% 100.000, 75% 100.000, "
        "90% 100.000, 100% 100.000; 0 have the default configuration alone"
    )


def test_gaps(tmp_path: Path, instant: Instant, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest gap is the first, and a search that was ended before its best was measured again has none."""
    log = tmp_path / "log.jsonl"
    tvmconv_json("bench", "defaults", "--workloads", 2, "--trials", 400, "-o", log)
    tasks = [autotvm.create(workload, "llvm") for workload in WORKLOADS]
    records, device = load_from_file(log).records, instant.device(tasks[0])
    slower = [
        msgspec.structs.replace(one, result=((2e-4,), *one.result[1:]))
        if one.workload == WORKLOADS[1] and one.config.index == 0
        else one
        for one in records
    ]
    large, small = defaults.gaps(tasks, slower, device)
    assert (large.workload, large.times) == (WORKLOADS[1], pytest.approx(200))
    assert (small.workload, small.times) == (WORKLOADS[0], pytest.approx(100))

    report([large, replace(small, space=1)], {"device": device, "left_out": 0}, as_json=False)
    assert capsys.readouterr().out.endswith("; 1 have the default configuration alone\n")
    ended = [one for one in records if one.workload == WORKLOADS[1] or one.stage is Stage.SEARCH]
    assert [gap.workload for gap in defaults.gaps(tasks, ended, device)] == [WORKLOADS[1]]


def test_the_best_may_be_of_another_algorithm(
    tmp_path: Path, instant: Instant, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = ConvWorkload.conv2d((1, 4, 6, 6), (4, 4, 5, 5))
    monkeypatch.setattr(defaults, "random_workloads", lambda *_: [workload])
    log = tmp_path / "log.jsonl"
    command = ["bench", "defaults", "--dense", "--workloads", 1, "--trials", 400, "-o", log]
    (row,) = tvmconv_json(*command, "--all-algorithms")["rows"]
    taken, other = defaults.tasks_of(workload, "llvm", "float32", all_algorithms=True)
    assert {taken.name, other.name} == {"cpu/direct", "cpu/im2win"}
    (alone,) = defaults.tasks_of(workload, "llvm", "float32", all_algorithms=False)
    assert taken.name == alone.name == autotvm.create(workload, "llvm").name == row["default_template"]

    def times_as_fast(name: str, times: float) -> list[autotvm.record.Record]:
        return [
            msgspec.structs.replace(each, result=(tuple(cost / times for cost in each.result[0]), *each.result[1:]))
            if each.template == name
            else each
            for each in load_from_file(log).records
        ]

    for name in (taken.name, other.name):
        (gap,) = defaults.gaps([taken, other], times_as_fast(name, 2), instant.device(taken))
        assert (gap.default.template, gap.best.template) == (taken.name, name)
        assert gap.times == pytest.approx(100 if name == taken.name else 200)


def test_workloads_that_no_algorithm_takes_are_left_out(
    tmp_path: Path, instant: Instant, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = msgspec.structs.replace(WORKLOADS[0], out_layout="NHWC")
    monkeypatch.setattr(defaults, "random_workloads", lambda *_: [WORKLOADS[0], refused])
    command = ["bench", "defaults", "--workloads", 2, "--trials", 9, "-o", tmp_path / "log.jsonl"]
    told = tvmconv_json(*command)
    assert (told["workloads"], told["left_out"], len(told["rows"])) == (2, 1, 1)
    assert tvmconv(*command).stdout.endswith("; 1 are left out, since no algorithm takes them\n")
    monkeypatch.setattr(defaults, "random_workloads", lambda *_: [refused, refused])
    result = tvmconv(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    expected = "a type of depthwise convolutions that an algorithm takes on llvm"
    assert f"dtype is 'float32'; expected {expected}" in result.stderr


def test_integers_on_a_gpu_are_in_fours() -> None:
    sm_90 = {"kind": "cuda", "arch": "sm_90"}
    workloads = defaults.random_workloads(20, 0, dense=True, dtype="int8")
    taken = [workload for workload in workloads if defaults.tasks_of(workload, sm_90, "float32", all_algorithms=False)]
    assert {workload.multiplier % 4 for workload in taken} == {0}
    assert 0 < len(taken) < len(workloads)


def test_a_default_that_fails(tmp_path: Path, instant: Instant) -> None:
    instant.failing = lambda place: place == 0
    result = tvmconv("bench", "defaults", "--workloads", 1, "--trials", 9, "-o", tmp_path / "log.jsonl")
    assert (result.exit_code, result.stdout) == (4, "")
    assert f"the default configuration failed on 1 of 1 workloads, the first of them {WORKLOADS[0]}" in result.stderr


def test_interrupted(tmp_path: Path, instant: Instant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reports its results so far, and how to go on."""
    arguments = ["bench", "defaults", "--workloads", "2", "--trials", "9", "-o", str(tmp_path / "log.jsonl")]
    monkeypatch.setattr(sys, "argv", ["tvmconv", *arguments])

    def interrupt(place: int) -> bool:
        if instant.measured.count(0) == 5:  # once in the search of the first workload, three times at its end
            signal.raise_signal(signal.SIGINT)
        return False

    instant.failing = interrupt
    result = tvmconv(*arguments)
    assert result.exit_code == 130
    assert " over 1 workloads on " in result.stdout
    assert result.stderr.splitlines()[-2:] == [f"to go on: {shlex.join(['tvmconv', *arguments])}", "interrupted"]


@pytest.mark.parametrize("seed", [6, 10])
def test_tensors_that_are_too_large_are_drawn_again(seed: int) -> None:
    """Among the first draws of these seeds is a tensor with more bytes than a workload may have."""
    assert len(defaults.random_workloads(100, seed)) == 100
