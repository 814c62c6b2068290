"""Tuning of sparse kernels: tasks, trials and records, and the configuration that a weight gets from records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

import tvmconv as library
from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload, autotvm
from tvmconv.autotvm import record
from tvmconv.autotvm.measure import BuildResult, MeasureInput, MeasureResult, Stage, Status, worker
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.measure.runner import LocalRunner
from tvmconv.autotvm.record import Record
from tvmconv.autotvm.simulator import ReplayedTask
from tvmconv.autotvm.task import Task, create
from tvmconv.autotvm.tuner.xgb_tuner import matrix
from tvmconv.checking.pruning import operands_for, pruned
from tvmconv.dispatch.history import serves
from tvmconv.lowering.folding import folding
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.support.store import default_folder
from tvmconv.targets import device_facts

pytestmark = pytest.mark.usefixtures("without_torch")

WORKLOAD = ConvWorkload.conv2d((1, 4, 6, 9), (12, 4, 3, 3), shift=True, residual=True, activation="relu")
SM_90 = {"kind": "cuda", "arch": "sm_90"}
TASK = create(WORKLOAD, "llvm", sparsity=0.9)
DENSE = create(WORKLOAD, "llvm")
HERE = device_facts("llvm")


def trial(of: Task, index: int, cost: float, stage: Stage = Stage.SEARCH) -> Record:
    """Return the record of the configuration at an index of the space; `cost` is in µs."""
    result = MeasureResult((cost / 1e6,), Status.OK, None, 0.1, 1.0, HERE)
    return Record.of(MeasureInput(of.target, of, of.space.configs[index], stage), result)


def test_tasks() -> None:
    assert (TASK.name, str(TASK)) == ("cpu/sparse", f"{WORKLOAD}, 90% zeros by cpu/sparse")
    scaled = ConvWorkload.conv2d((1, 4, 6, 9), (12, 4, 3, 3), scale=True, shift=True, residual=True, activation="relu")
    assert create(scaled, "llvm", sparsity=0.9).problem == TASK.problem
    found = autotvm.extract_from_suite("sparse-paper", SM_90, sparsity=0.9)
    assert {task.name for task in found} == {"cuda/sparse"}
    assert {task.workload.batch for task in found} == {64}
    dense = create(found[1].workload, SM_90, sparsity=0.1)
    assert len(dense.space.configs) < len(found[1].space.configs), "more of them have too much code"
    with pytest.raises(InvalidArgumentError, match="algorithm is 'direct'; expected auto for a sparse kernel"):
        create(WORKLOAD, "llvm", "direct", sparsity=0.9)
    with pytest.raises(InvalidArgumentError, match="sparsity is 90; expected a share of zeros"):
        create(WORKLOAD, "llvm", sparsity=90)


def test_tasks_of_a_model() -> None:
    """Constant weights have tasks; they contain batch norm's scale, so layers with and without it are equal."""
    graph = Graph((1, 4, 8, 8))
    graph.inputs.append(graph._value("w", (4, 4, 3, 3)))
    y = graph.batch_norm(graph.conv("x", (4, 4, 3, 3), pads=[1] * 4), 4)
    y = graph.conv(y, (4, 4, 3, 3), bias=True, pads=[1] * 4)
    source = graph.model(graph.node("Conv", y, "w"))
    assert len(autotvm.extract_from_model(source, "llvm")) == 3
    (only,) = autotvm.extract_from_model(source, "llvm", sparsity=0.8)
    assert (only.weight, only.sparsity, str(only.workload.epilogue)) == (2, 0.8, "shift")


def test_a_line_has_the_share_of_zeros_as_keyword() -> None:
    whole = trial(TASK, 2, 1.0)
    line = json.loads(record.encode(whole))
    assert (line["input"][1], line["input"][3]) == ("cpu/sparse", {"sparsity": 0.9})
    assert ConvWorkload.from_json(json.dumps(line["input"][2][0])) == WORKLOAD
    assert record.decode(record.encode(whole)) == whole
    assert json.loads(record.encode(trial(DENSE, 2, 1.0)))["input"][3] == {}
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        record.decode(record.encode(whole).replace(b'"sparsity"', b'"density"'))


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner(number=2, repeat=3, min_repeat_ms=0, timeout=5)
    yield runner
    runner.close()


def built(builder: LocalBuilder, task: Task) -> BuildResult:
    return builder.build(MeasureInput(task.target, task, task.space.default)).result()


@pytest.mark.usefixtures("one_round")
def test_tuning_then_use(tmp_path: Path, builder: LocalBuilder, runner: LocalRunner) -> None:
    log = tmp_path / "log.jsonl"
    option = autotvm.measure_option(builder, runner)
    (summary,) = autotvm.tune_tasks([TASK], log, option, tuner="xgb", trials=2, seed=0)
    assert (summary.trials, summary.failures) == (2, {})
    assert summary.best_cost <= summary.default_cost
    assert {one.problem for one in record.load_from_file(log).records} == {TASK.problem}
    operands = operands_for(TASK.problem)
    made = library.sparse_conv2d(operands["w"], shift=operands["shift"], residual=True, activation="relu")
    with autotvm.apply_history_best(log):
        selection = made.operator(WORKLOAD.x_shape).selection
    assert selection.reason.startswith("tuned for 90% zeros: ")
    assert selection.config == summary.best_config


def test_trials_are_checked(builder: LocalBuilder, runner: LocalRunner) -> None:
    """A kernel with other zeros than the task's fails."""
    expected = MeasureInput(TASK.target, TASK, TASK.space.default)
    assert runner.run(expected, built(builder, TASK)).status is Status.OK
    other = built(builder, create(WORKLOAD, "llvm", sparsity=0.85))
    assert runner.run(expected, other).status is Status.WRONG_ANSWER


def test_a_trial_for_cuda_is_compiled_launch_by_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code lies beside its library, not in the cache of reused weights, and is compiled once."""
    monkeypatch.setattr(folding, "PRODUCTS_OF_A_LAUNCH", 200)
    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path / "cache"))  # which no other test writes to
    task = create(ConvWorkload.conv2d((1, 8, 8, 8), (8, 8, 3, 3)), SM_90, sparsity=0.5)
    knobs = msgspec.to_builtins(next(config for config in task.space.configs if config.block_m == 4))

    def compiled() -> dict[str, int]:
        worker.build(task.problem.to_json(), task.name, knobs, str(task.target), str(tmp_path / "kernel.so"))
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.cubin")}

    first = compiled()
    assert len(first) == 2
    assert compiled() == first
    assert not default_folder().exists()


def test_cost_models_see_sparse_kernels() -> None:
    for target in ("llvm", SM_90):
        task = create(WORKLOAD, target, sparsity=0.9)
        assert np.isfinite(matrix(task, task.space.configs[:9])).all()


@pytest.mark.parametrize(
    ("measured", "sparsity", "expected"),
    [
        (0.9, 0.9, True),
        (0.9, 0.85, True),
        (0.9, 0.93, True),
        (0.9, 0.84, False),
        (0.9, 0.94, False),
        (0.5, 0.3, True),
        (0.0, 0.4, False),
        (1.0, 1.0, True),
        (0.9, 1.0, False),
        (None, None, True),
        (None, 0.0, False),
        (0.9, None, False),
    ],
)
def test_which_records_serve(measured: float | None, sparsity: float | None, expected: bool) -> None:
    assert serves(measured, sparsity) is expected


def test_the_nearest_share_of_zeros_chooses(tmp_path: Path) -> None:
    """The times of different shares do not compare: code with fewer non-zeros is faster."""
    log = tmp_path / "log.jsonl"
    less = create(WORKLOAD, "llvm", sparsity=0.86)
    record.append(log, [trial(TASK, 3, 2.0), trial(TASK, 4, 3.0), trial(less, 5, 9.0), trial(DENSE, 6, 1.0)])
    dense = operands_for(DENSE.problem)["w"]

    def selected(sparsity: float) -> Any:
        made = library.sparse_conv2d(pruned(dense, sparsity), shift=np.zeros(12), residual=True, activation="relu")
        return made.operator(WORKLOAD.x_shape).selection

    with autotvm.apply_history_best(log):
        assert selected(0.9).config == TASK.space.configs[3]
        assert selected(0.87).config == less.space.configs[5]
        assert selected(0.87).reason == f"tuned for 86% zeros: 9.00 µs on {HERE} ({log})"
        assert selected(0.75).reason == "default configuration for 25% non-zeros"
        assert library.compile(WORKLOAD).selection.config == DENSE.space.configs[6]
    assert selected(0.9).reason.startswith("default configuration")


def test_replaying() -> None:
    replayed = ReplayedTask.of([trial(TASK, index, 1.0) for index in (0, 3, 5)])
    assert replayed.problem == TASK.problem
    assert replayed.space.configs == tuple(TASK.space.configs[index] for index in (0, 3, 5))


LAYER = ConvWorkload.conv2d((1, 4, 8, 8), (4, 4, 3, 3), shift=True)


def network(sparsity: float) -> onnx.ModelProto:
    graph = Graph((1, 4, 8, 8))
    weight = graph.constant(pruned(np.random.default_rng(1).standard_normal((4, 4, 3, 3)), sparsity))
    return graph.model(graph.node("Conv", "x", weight, graph.random(4), pads=[1] * 4))


BY_RECORD = {
    "dense-is-faster": (0.9, 2.0, 1.0, "cpu/direct", "tuned: 1.00 µs"),
    "sparse-is-faster": (0.9, 1.0, 2.0, "cpu/sparse", "90.3% of the weight is zero; tuned for 90.28% zeros: 1.00 µs"),
    "sparse-is-faster-with-few-zeros": (
        0.3,
        1.0,
        2.0,
        "cpu/sparse",
        "29.9% of the weight is zero; tuned for 29.86%",
    ),
    "sparse-alone": (0.9, 1.0, None, "cpu/sparse", "90.3% of the weight is zero; tuned for"),
    "sparse-alone-with-few-zeros": (0.3, 1.0, None, "cpu/direct", "default configuration"),
    "dense-alone": (0.9, None, 1.0, "cpu/sparse", "90.3% of the weight is zero; default configuration for 9.72% non"),
}


@pytest.mark.parametrize(("sparsity", "sparse", "dense", "kernel", "reason"), BY_RECORD.values(), ids=BY_RECORD.keys())
def test_records_of_both_decide(
    tmp_path: Path, sparsity: float, sparse: float | None, dense: float | None, kernel: str, reason: str
) -> None:
    log = tmp_path / "log.jsonl"
    zeros = round(sparsity * 144) / 144
    record.append(log, [] if sparse is None else [trial(create(LAYER, "llvm", sparsity=zeros), 1, sparse)])
    record.append(log, [] if dense is None else [trial(create(LAYER, "llvm"), 1, dense)])
    with autotvm.apply_history_best(log):
        (layer,) = library.build(network(sparsity)).layers
        (every,) = library.build(network(sparsity), sparse="always").layers
    assert (layer.kernel, layer.reason[: len(reason)]) == (f"tvmconv {kernel}", reason)
    assert every.kernel == "tvmconv cpu/sparse"
    assert ("tuned" in every.reason) is (sparse is not None)


def test_command_line(tmp_path: Path) -> None:
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    suite = ["--suite", "sparse-paper", "--sparsity", 0.9, "--tasks", "1-2", "-o", log]
    plan = tvmconv_json("tune", *suite, "--batch", 1, "--dry-run")["tasks"]
    assert {(task["schedule"], task["sparsity"], task["workload"]["batch"]) for task in plan} == {
        ("cpu/sparse", 0.9, 1)
    }
    header, first, *_ = tvmconv("tune", *suite, "--dry-run").stdout.splitlines()
    assert header.split() == ["#", "workload", "layers", "schedule", "space", "in", "the", "log", "to", "do"]
    assert ", 90% zeros" in first
    assert "--algorithm goes with dense" in tvmconv("tune", *suite, "--algorithm", "im2win").stderr
    record.append(
        log, [trial(TASK, 0, 4.0), trial(TASK, 3, 2.0), trial(create(WORKLOAD, "llvm", sparsity=0.5), 0, 7.0)]
    )
    assert len(tvmconv_json("log", "best", log)["records"]) == 2
    for command in (["log", "best", log], ["log", "show", log]):
        table = tvmconv(*command).stdout
        assert ", 90% zeros" in table
        assert ", 50% zeros" in table
    tvmconv("report", log, "-o", page)
    assert "90% zeros" in page.read_text()
