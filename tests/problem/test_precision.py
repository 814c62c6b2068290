"""Precision: the words, the key of problems and records, what results may be wrong by, and each way to ask for one."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import onnx
import pytest

import tvmconv as library
from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload, autotvm
from tvmconv.cli.tune import Source
from tvmconv.compute import conv2d_reference
from tvmconv.dispatch.call import problem_from
from tvmconv.problem import Problem
from tvmconv.problem.activations import ACTIVATIONS, Name
from tvmconv.problem.dtypes import DTYPES, STORAGE_TYPES, DType, OutDType
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import HALVES, NETWORK_WORDS, PRECISIONS, WORDS, NetworkWord, Word
from tvmconv.runtime.arrays import to_torch
from tvmconv.targets import resolve_target
from tvmconv.testing import Sample, check_result, random_operands
from tvmconv.testing.factors import rounded

WORKLOAD = ConvWorkload.conv2d((1, 8, 12, 12), (16, 8, 3, 3))
HALF = ConvWorkload.conv2d((1, 8, 12, 12), (16, 8, 3, 3), dtype="float16")
FUSED = ConvWorkload.conv2d((1, 8, 12, 12), (16, 8, 3, 3), scale=True, shift=True, residual=True, activation="silu")
CPU = resolve_target("llvm")

any_word = pytest.mark.parametrize("word", WORDS)


# The word and the problem


def test_types_have_the_words_of_the_rows() -> None:
    """Type checkers take those words of options that the rows of the tables name, and no others."""
    listed = {Word: WORDS, NetworkWord: NETWORK_WORDS, Name: ACTIVATIONS, DType: DTYPES, OutDType: STORAGE_TYPES}
    assert {kind: get_args(kind) for kind in listed} == {kind: tuple(names) for kind, names in listed.items()}


def test_each_word_is_served_by_itself_and_stricter_ones() -> None:
    assert WORDS == ("strict", "float32", "tf32")
    for number, row in enumerate(PRECISIONS.values()):
        assert row.served_by == WORDS[number::-1]


def test_guide_has_the_promises() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operands.md").read_text()
    for row in PRECISIONS.values():
        default = ", the default" * (row.name == "float32")
        promise = row.promise[0].lower() + row.promise.rstrip(".")[1:]
        assert f'| `"{row.name}"`{default} | {promise} |\n' in guide
    for half in HALVES.values():
        promise = half.promise[0].lower() + half.promise.rstrip(".")[1:]
        assert f'| `"{half.name}"` | {promise} |\n' in guide


@pytest.mark.parametrize("word", ["TF32", "", None, ["tf32"], 32])
def test_unknown_word_is_refused(word: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="precision is .*; expected strict, float32 or tf32"):
        Problem(WORKLOAD, precision=word)
    with pytest.raises(InvalidArgumentError, match="precision is .*; expected strict, float32 or tf32"):
        library.compile(WORKLOAD, precision=word)
    operands = random_operands(WORKLOAD)
    with pytest.raises(InvalidArgumentError, match="precision is .*; expected strict, float32 or tf32"):
        library.conv2d(operands["x"], operands["w"], precision=word)
    with pytest.raises(InvalidArgumentError, match="expected strict, float32, tf32, float16 or bfloat16"):
        library.build(two_layers(), precision=word)


def test_problems_of_other_words_are_others() -> None:
    problems = [Problem(WORKLOAD, precision=word) for word in WORDS]
    assert len(set(problems)) == len(WORDS)
    assert Problem(WORKLOAD) == problems[1]
    assert [str(problem) for problem in problems] == [
        f"{WORKLOAD}, precision strict",
        f"{WORKLOAD}",
        f"{WORKLOAD}, precision tf32",
    ]
    assert [problem.precision for problem in problems[0].in_other_words] == ["float32", "tf32"]
    assert [problem.precision for problem in problems[1].in_other_words] == ["strict", "tf32"]
    assert [problem.precision for problem in problems[2].in_other_words] == ["float32", "strict"]


@any_word
def test_message_to_another_process_holds_it(word: str) -> None:
    problem = Problem(WORKLOAD, precision=word)
    assert problem_from(problem.to_json()) == problem


def test_one_computation_has_one_problem() -> None:
    """Numbers in half precision are TF32 numbers; sparse kernels use multiply-adds alone."""
    assert Problem(HALF, precision="tf32") == Problem(HALF)
    assert Problem(HALF).in_other_words == []
    for word in WORDS:
        assert Problem(WORKLOAD, 0.5, word) == Problem(WORKLOAD, 0.5)
    with pytest.raises(
        InvalidArgumentError, match="'strict'; expected float32 or tf32 for x in float16: strict is for float32"
    ):
        Problem(HALF, precision="strict")


# Results


def computed(workload: ConvWorkload, operands: dict[str, np.ndarray], bits: int, up: bool = True) -> np.ndarray:
    """Return the convolution of factors with so many bits."""
    inputs = {name: array for name, array in operands.items() if name != "output"}
    factors = {name: rounded(inputs[name], bits, up) for name in ("x", "w")}
    return conv2d_reference(workload, **{**inputs, **factors}).astype(workload.dtype)


ROUNDED = {
    "products of one": ConvWorkload.conv2d((1, 1, 9, 9), (1, 1, 1, 1)),
    "depthwise": ConvWorkload.depthwise((2, 24, 17, 17), (24, 1, 3, 3)),
    "dense": ConvWorkload.conv2d((2, 64, 14, 14), (32, 64, 3, 3)),
    "long sums": ConvWorkload.conv2d((1, 1024, 6, 6), (32, 1024, 1, 1)),
    "fused": FUSED,
    "NHWC": msgspec.structs.replace(FUSED, layout="NHWC", w_layout="KRSC", out_layout="NHWC"),
}


@pytest.mark.parametrize("workload", ROUNDED.values(), ids=ROUNDED)
def test_tf32_may_round_its_factors_to_the_nearest_tf32(workload: ConvWorkload) -> None:
    """And no other precision may, nor may it round to bfloat16, or cut bits off."""
    for seed in range(5):
        operands = random_operands(workload, seed)
        nearest, bfloat16 = (computed(workload, operands, bits) for bits in (10, 7))
        check_result(workload, operands, nearest, precision="tf32")
        check_result(workload, operands, computed(workload, operands, 22), precision="tf32")
        with pytest.raises(AssertionError, match="elements are wrong|root mean square error"):
            check_result(workload, operands, bfloat16, precision="tf32")
        for word in ("strict", "float32"):
            with pytest.raises(AssertionError, match="elements are wrong|root mean square error"):
                check_result(workload, operands, nearest, precision=word)
        if workload.in_channels > 1 and workload.epilogue == Epilogue():  # a bound for the steepest slope is wider
            with pytest.raises(AssertionError, match="elements are wrong|root mean square error"):
                check_result(workload, operands, computed(workload, operands, 10, up=False), precision="tf32")


def test_few_sums_may_all_have_large_errors() -> None:
    """The root mean square of eight errors is 1.12 times what is allowed over many sums, with these operands."""
    workload = ConvWorkload.conv2d((1, 106, 1, 1), (8, 106, 1, 1), scale=True)
    operands = random_operands(workload, 719)
    check_result(workload, operands, computed(workload, operands, 10), precision="tf32")
    with pytest.raises(AssertionError, match="root mean square error"):
        check_result(workload, operands, computed(workload, operands, 10, up=False), precision="tf32")


def test_sample_has_the_bound_of_the_problem() -> None:
    workload = ROUNDED["dense"]
    operands = random_operands(workload)
    nearest = computed(workload, operands, 10)
    Sample(Problem(workload, precision="tf32"), operands, np.random.default_rng(0), nearest.size // 3).check(nearest)
    with pytest.raises(AssertionError, match="elements are wrong|root mean square error"):
        Sample(Problem(workload), operands, np.random.default_rng(0), nearest.size // 3).check(nearest)


def test_one_wrong_element_is_found_in_tf32() -> None:
    workload = ROUNDED["dense"]
    operands = random_operands(workload)
    got = computed(workload, operands, 10)
    got[1, 2, 3, 4] += 2
    with pytest.raises(AssertionError, match="1 of 12544 elements are wrong"):
        check_result(workload, operands, got, precision="tf32")


@any_word
def test_calls_take_it(word: str) -> None:
    operands = random_operands(WORKLOAD)
    check_result(WORKLOAD, operands, library.conv2d(operands["x"], operands["w"], precision=word))
    depthwise = ConvWorkload.depthwise((1, 8, 12, 12), (8, 1, 3, 3))
    operands = random_operands(depthwise)
    check_result(depthwise, operands, library.depthwise(operands["x"], operands["w"], precision=word))


def test_calls_in_half_precision_share_a_kernel() -> None:
    from tvmconv.runtime import operators

    operands = random_operands(HALF)
    kept = {library.conv2d(operands["x"], operands["w"], precision=word).tobytes() for word in ("float32", "tf32")}
    assert len(kept) == 1
    assert len([problem for problem, *_ in operators._operators if problem.workload == HALF]) == 1
    with pytest.raises(InvalidArgumentError, match="for x in float16"):
        library.conv2d(operands["x"], operands["w"], precision="strict")


@any_word
def test_operator_tells_it_and_keeps_it_in_its_file(word: str, tmp_path: Path) -> None:
    operator = library.compile(WORKLOAD, precision=word)
    told = "" if word == "float32" else f", precision {word}"
    assert repr(operator) == f"<tvmconv.Operator {WORKLOAD}{told} for llvm by {operator.selection.name}>"
    assert operator.selection.reason.endswith(f"; precision {word}") is (word != "float32")
    operator.save(tmp_path / "operator.so")
    loaded = library.load(tmp_path / "operator.so")
    assert (loaded.problem, loaded.selection.reason) == (operator.problem, operator.selection.reason)


def test_saved_operator_without_a_word_is_in_float32() -> None:
    operator = library.compile(WORKLOAD)
    executable = operator._compiled()
    details = operator._details(executable)
    del details["precision"]
    assert library.Operator._from_details(executable, str(operator.target), details).problem == Problem(WORKLOAD)


def test_tasks_take_it() -> None:
    tasks = autotvm.extract_from_suite("im2win-thesis", "llvm", precision="strict")
    assert {task.problem.precision for task in tasks} == {"strict"}
    tasks = autotvm.extract_from_model(two_layers(), "llvm", precision="tf32")
    assert {task.problem.precision for task in tasks} == {"tf32"}
    assert tasks[0].for_problem(Problem(WORKLOAD)).problem == Problem(WORKLOAD)
    half = autotvm.create(HALF, CPU, precision="tf32")
    assert (half.precision, half.problem) == ("float32", Problem(HALF))
    with pytest.raises(InvalidArgumentError, match="precision is 'tf32'; expected float32 for a sparse kernel"):
        autotvm.create(WORKLOAD, "llvm", sparsity=0.9, precision="tf32")


# Networks and the command line


def two_layers(dtype: str = "float32") -> Any:
    """Return a model with a dense convolution and a depthwise one."""
    graph = Graph((1, 4, 9, 9), dtype)
    y = graph.conv("x", (8, 4, 3, 3), pads=[1, 1, 1, 1])
    return graph.model(graph.conv(y, (8, 1, 3, 3), group=8))


@any_word
def test_network_has_it_in_each_convolution(word: str) -> None:
    network = library.build(two_layers(), precision=word)
    assert [layer.kernel for layer in network.layers] == ["tvmconv cpu/direct", "tvmconv cpu/depthwise"]
    assert {layer.reason.endswith(f"; precision {word}") for layer in network.layers} == {word != "float32"}


def test_network_in_half_precision() -> None:
    network = library.build(two_layers("float16"), precision="tf32")
    assert not any("precision" in layer.reason for layer in network.layers)
    with pytest.raises(InvalidArgumentError, match="for x in float16"):
        library.build(two_layers("float16"), precision="strict")


def test_command_line_takes_it(tmp_path: Path) -> None:
    model, log = tmp_path / "model.onnx", tmp_path / "log"
    onnx.save(two_layers(), model)
    given = "--precision", "tf32"
    plan = tvmconv_json("tune", model, "-o", log, "--dry-run", *given)
    assert [task["precision"] for task in plan["tasks"]] == ["tf32", "tf32"]
    plan = tvmconv_json("tune", "--workload", WORKLOAD.to_json(), "-o", log, "--dry-run", *given)
    assert [task["precision"] for task in plan["tasks"]] == ["tf32"]
    of_suite = Source(None, "im2win-thesis", None, None, None, "auto", None, "tf32", "forward", "llvm", None)
    assert {task.precision for task in of_suite.tasks()} == {"tf32"}
    shown = tvmconv_json("inspect", WORKLOAD.to_json(), *given)
    assert (shown["precision"], shown["reason"]) == ("tf32", "default configuration; precision tf32")
    assert f"{WORKLOAD}, precision tf32" in tvmconv("inspect", WORKLOAD.to_json(), *given).stdout
    built = tvmconv_json("build", model, "-o", tmp_path / "model.so", *given)
    assert all(layer["reason"].endswith("; precision tf32") for layer in built["layers"])


def test_command_line_refuses_it(tmp_path: Path) -> None:
    model, log = tmp_path / "model.onnx", tmp_path / "log"
    onnx.save(two_layers(), model)
    unknown = tvmconv("inspect", WORKLOAD.to_json(), "--precision", "half")
    assert (unknown.exit_code, "'half' is not one of 'strict', 'float32', 'tf32'" in unknown.stderr) == (2, True)
    sparse = ["--sparsity", "0.9", "--precision", "strict"]
    for command in (["tune", model, "-o", log], ["bench", "suite", "sparse-paper"]):
        refused = tvmconv(*command, *sparse)
        assert (refused.exit_code, "--precision goes with dense weights" in refused.stderr) == (2, True)
    narrow = tvmconv("inspect", HALF.to_json(), "--precision", "strict")
    assert (narrow.exit_code, "for x in float16" in narrow.stderr) == (2, True)


def test_benchmark_takes_it(brief: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    bench_suite = import_module("tvmconv.cli.bench.suite")

    monkeypatch.setattr(bench_suite, "load_suite", lambda *_: {"one": WORKLOAD})
    given = "bench", "suite", "sparse-paper", "--peers", "tvmconv-direct", "--rounds", "1"
    report = tvmconv_json(*given, "--precision", "strict")
    (row,) = report["rows"]
    assert (row["workload"], row["skipped"]) == (f"{WORKLOAD}, precision strict", {})
    assert row["selection"].endswith("; precision strict")
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(report))
    new.write_text(json.dumps(tvmconv_json(*given)))
    other = tvmconv("bench", "compare", old, new)
    assert (other.exit_code, "expected a document with a row of" in other.stderr) == (2, True)


def test_benchmark_checks_by_it() -> None:
    """A kernel whose factors are rounded to TF32 is wrong unless that was asked for."""
    pytest.importorskip("torch")
    from tvmconv.bench.peers.ours import Tvmconv
    from tvmconv.bench.suite import _Check

    operands = random_operands(WORKLOAD)
    nearest = to_torch(computed(WORKLOAD, operands, 10))
    check = _Check(operands, "cpu")
    check(Tvmconv("tf32"), WORKLOAD, lambda: nearest)
    with pytest.raises(AssertionError, match="elements are wrong|root mean square error"):
        check(Tvmconv(), WORKLOAD, lambda: nearest)
