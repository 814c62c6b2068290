"""One kernel for any batch: calls on arrays, and operators that are kept."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm

import tvmconv
from tests.shared.huge_arrays import huge
from tests.shared.records import TASK, WORKLOAD, record
from tvmconv import ConvWorkload
from tvmconv.autotvm.history import apply_history_best
from tvmconv.autotvm.record import append
from tvmconv.dispatch import range_with, registry, select, select_ranges, template_named
from tvmconv.dispatch.history import applied
from tvmconv.dispatch.ranges import ASSUMED_BATCHES
from tvmconv.lowering import lower
from tvmconv.lowering.open_sizes.divisions import with_quotients_rounded_to_zero
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import MAX_ELEMENTS
from tvmconv.runtime import operators
from tvmconv.runtime.arrays import Operand
from tvmconv.support.cache import Cache
from tvmconv.targets import resolve_target, threads
from tvmconv.testing import check_result, random_operands

SM_90 = '{"kind": "cuda", "arch": "sm_90"}'
CPU, CUDA = resolve_target("llvm"), resolve_target(SM_90)

WORKLOADS = {
    "depthwise": ConvWorkload.depthwise((1, 6, 9, 11), (6, 2, 3, 3), stride=2, scale=True, shift=True),
    "dense": ConvWorkload.conv2d((1, 5, 9, 11), (7, 5, 3, 3), dilation=2, residual=True, activation="silu"),
    "pointwise": ConvWorkload.conv2d((1, 16, 8, 8), (8, 16, 1, 1), dtype="bfloat16"),
    "grouped": ConvWorkload.conv2d((1, 6, 7, 7), (8, 3, 3, 3), groups=2, dtype="float16", activation="relu"),
    "rows": ConvWorkload.conv2d((64, 24, 1, 1), (20, 24, 1, 1), shift=True, residual=True, activation="gelu"),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_operators", Cache(9))
    monkeypatch.setattr(operators, "_first_sizes", Cache(9))
    operators._calls.known.clear()


def check_batch(operator: tvmconv.Operator, batch: int) -> None:
    workload = msgspec.structs.replace(operator.workload, batch=batch)
    operands = random_operands(workload, batch)
    inputs = {name: array for name, array in operands.items() if name != "output"}
    check_result(workload, operands, operator(**inputs))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_operator_for_any_batch(workload: ConvWorkload, tmp_path: Path) -> None:
    operator = tvmconv.compile(workload, open_sizes=("batch",))
    assert str(operator.problem) == f"{workload}, any batch"
    operator.save(tmp_path / "any.so")
    loaded = tvmconv.load(tmp_path / "any.so")
    assert isinstance(loaded, tvmconv.Operator)
    assert loaded.problem == operator.problem
    for batch in (3, 1, 70):
        check_batch(operator, batch)
        check_batch(loaded, batch)


def test_divisions_by_a_batch_are_simple_ones() -> None:
    """TVM rounds down what may be below zero, by code that its simplifier takes minutes for in a large kernel."""
    problem = Problem(ConvWorkload.conv2d((1, 62, 14, 10), (68, 31, 3, 3), groups=2), open_sizes=("batch",))
    knobs = {"vectors": 1, "rows": 3, "columns": 5, "channels": 31, "tiles": 1, "staged": 2, "parallel": True}
    config = replace(select(problem, CPU, algorithm="direct").config, **knobs)
    operator = tvmconv.compile(problem.workload, CPU, config, "direct", open_sizes=("batch",))
    func = lower(problem, operator.selection, CPU, "kernel")
    assert re.search("(//|%) \\(?batch", func.script())
    assert not re.search("(//|%) \\(?batch", with_quotients_rounded_to_zero(func).script())
    for batch in (1, 3):
        check_batch(operator, batch)


def test_batches_that_no_operator_takes(tmp_path: Path) -> None:
    operator = tvmconv.compile(ConvWorkload.depthwise((1, 8, 16, 16), (8, 1, 3, 3)), open_sizes=("batch",))
    w = np.zeros((8, 1, 3, 3), "float32")
    too_many = huge(tmp_path, (MAX_ELEMENTS // 2048 + 1, 8, 16, 16))
    for x, message in (
        (np.zeros((0, 8, 16, 16), "float32"), "batch is 0; expected an integer of 1 or more"),
        (too_many, f"expected a tensor of at most {MAX_ELEMENTS} elements"),
        (np.zeros((2, 8, 16, 17), "float32"), r"expected the shape \(2, 8, 16, 16\)"),
        (np.zeros((8, 16, 16), "float32"), r"expected the shape \(1, 8, 16, 16\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            operator(x, w)
    with pytest.raises(InvalidArgumentError, match="open_sizes is .*expected names of batch"):
        tvmconv.compile(operator.workload, open_sizes=("channels",))


def test_calls_with_many_batches_compile_once() -> None:
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("float32")
    for batch in range(1, 101):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 6, 5)).astype("float32")
        y = tvmconv.conv2d(x, w)
    workload = ConvWorkload.conv2d(x.shape, w.shape)
    check_result(workload, {"x": x, "w": w}, y)
    assert len(operators._operators) == 1


def test_a_batch_with_records_has_a_kernel_of_its_own(tmp_path: Path) -> None:
    """It is the one that was measured; other batches share the one that is chosen for a batch of 1."""
    log, batch = tmp_path / "log.jsonl", WORKLOAD.batch + 1
    append(log, [record(5, [2e-6])])
    x, w = (random_operands(WORKLOAD)[name] for name in ("x", "w"))
    with apply_history_best(log), warnings.catch_warnings():
        warnings.simplefilter("error")
        for images in (x, np.resize(x, (batch, *x.shape[1:])), np.resize(x, (batch + 1, *x.shape[1:]))):
            tvmconv.depthwise(images, w)
    measured, shared = operators._operators.values()
    assert (measured.workload, measured.problem.open_sizes) == (WORKLOAD, ())
    assert measured.selection.config == TASK.space.configs[5]
    assert shared.problem.open_sizes == ("batch",)


def test_operator_for_any_height_and_width() -> None:
    workload = ConvWorkload.conv2d((1, 5, 9, 11), (7, 5, 3, 3))
    operator = tvmconv.compile(workload, open_sizes=("batch", "height", "width"))
    for shape in ((2, 5, 13, 8), (1, 5, 9, 11)):
        other = msgspec.structs.replace(workload, batch=shape[0], height=shape[2], width=shape[3])
        operands = random_operands(other)
        check_result(other, operands, operator(operands["x"], operands["w"]))


def at(workload: ConvWorkload, batch: int) -> ConvWorkload:
    return msgspec.structs.replace(workload, batch=batch)


DENSE = ConvWorkload.conv2d((5, 64, 28, 28), (128, 64, 3, 3))


def solved(workload: ConvWorkload, target: str = SM_90, algorithm: str = "auto") -> Problem:
    """Return the problem of the kernel that a call gets."""
    state = threads.changes, registry.changes, applied.get()
    return operators._with_open_sizes(Problem(workload), algorithm, target, state)


@pytest.mark.parametrize("algorithm", ["auto", "direct"])
def test_batches_on_a_gpu_share_kernels_of_their_ranges(algorithm: str) -> None:
    """The first has a kernel of its own, also when it comes again; the others have those that networks have."""
    batches = (5, *range(1, 101), 5)
    strided = msgspec.structs.replace(DENSE, stride=(2, 2))  # which Winograd's kernels, of one batch each, do not take
    problems = [solved(at(strided, batch), algorithm=algorithm) for batch in batches]
    assert problems[0] == problems[-1] == Problem(strided)
    assert 1 < len(set(problems)) <= 1 + len(ASSUMED_BATCHES)
    ranges = [range_with(batch, Problem(strided).with_any_batch(), CUDA, algorithm) for batch in batches]
    assert all(each == chosen.problem for each, chosen in zip(problems, ranges, strict=True) if each.open_sizes)
    if algorithm == "auto":
        assert set(ranges) == set(select_ranges(Problem(strided).with_any_batch(), CUDA))


def test_lengths_of_rows_share_kernels() -> None:
    """On a GPU the first length has a kernel of its own."""
    lengths = (1000, 300, 2048, 1000)
    rows = [ConvWorkload.depthwise((2, 8, 1, n), (8, 1, 1, 4), padding=(0, 3, 0, 0)) for n in lengths]
    problems = [solved(workload) for workload in rows]
    assert problems[0] == problems[3] == Problem(rows[0])
    assert problems[1] == problems[2] == Problem(rows[0]).with_any_length()
    assert {solved(workload, "llvm") for workload in rows} == {problems[1]}
    for other in (
        ConvWorkload.depthwise((2, 8, 1, 15), (8, 1, 1, 4), padding=(0, 3, 0, 0)),
        ConvWorkload.depthwise((2, 8, 1, 70), (8, 1, 1, 70), padding=0),
        ConvWorkload.depthwise((2, 8, 2, 300), (8, 1, 1, 4), padding=0),
        ConvWorkload.depthwise((2, 8, 1, 300), (8, 1, 3, 3), padding=1),
        ConvWorkload.conv2d((2, 8, 1, 300), (8, 8, 1, 3)),
    ):
        assert solved(other, "llvm").open_sizes in (("batch",), ())


def test_rows_of_linear_layers_share_kernels_on_a_cpu() -> None:
    """A single row has tiles of channels alone, and all other numbers of rows those of several."""
    layer = ConvWorkload.conv2d((1, 384, 1, 1), (1152, 384, 1, 1))
    problems = [solved(at(layer, rows), "llvm") for rows in (1, *range(4, 400, 7))]
    assert all(problem.open_sizes == ("batch",) for problem in problems)
    one, many = dict.fromkeys(problems)
    assert [select(problem, CPU).config.rows > 1 for problem in (one, many)] == [False, True]
    assert len(select_ranges(one, CPU)) == 1  # a network would have the weight twice


def test_a_batch_with_records_has_a_kernel_of_its_own_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "tuned", lambda problem, *rest: problem.workload.batch == 7)
    assert [solved(at(DENSE, batch)).open_sizes for batch in (5, 6, 7, 8)] == [(), ("batch",), (), ("batch",)]


def test_a_batch_that_is_too_large_for_an_open_kernel() -> None:
    """An image has 64 * 28 * 28 * 4 bytes; kernels for any batch count 2**31 - 1."""
    workload = ConvWorkload.depthwise((1, 64, 28, 28), (64, 1, 3, 3))
    operator = tvmconv.compile(workload, CUDA, open_sizes=("batch",))
    most = (2**31 - 1) // (64 * 28 * 28 * 4)
    assert [operator.takes(at(workload, batch)) for batch in (most, most + 1)] == [True, False]
    with pytest.raises(InvalidArgumentError, match="sizes with which no array has over 2147483647 bytes"):
        operator._workload_of(Operand("x", None, (most + 1, 64, 28, 28), "float32", tvm.cuda()))
    for batch, opened in ((1, ()), (2, ("batch",)), (most + 1, ())):
        problem = Problem(at(workload, batch))
        assert operators.operator_for(problem, "auto", SM_90, ()).problem.open_sizes == opened


def test_where_no_template_takes_an_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_named("cpu/direct"), "OPEN_SIZES", ())
    w = np.ones((4, 3, 3, 3), "float32")
    for batch in (1, 2):
        tvmconv.conv2d(np.ones((batch, 3, 6, 5), "float32"), w, algorithm="direct")
    assert [operator.workload.batch for operator in operators._operators.values()] == [1, 2]
