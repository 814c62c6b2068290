"""Branches of a network: their operators are fused as others are, and open sizes may be those of what they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.network.runtime.branch_cases import DIFFERENT, Sizes, branch, choosing, reshaped
from tvmconv import load
from tvmconv.network import Network, build
from tvmconv.problem.errors import InvalidArgumentError

SIZES = {"fixed": (4, 5), "open": ("rows", 5)}


def check(model: onnx.ModelProto, rows: int) -> None:
    network, x = build(model), np.random.default_rng(1).random((rows, 5), dtype="float32")
    for flag in (True, False):
        feeds = {"x": x, "flag": np.array(flag)}
        (expected,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(network(**feeds), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
def test_operators_are_fused(shape: tuple[Any, ...]) -> None:
    """A chain is one kernel in a branch, too."""
    first = branch(("Exp", "x", "a"), ("Add", "a", "x", "b"), ("Sqrt", "b", "y"), outputs=("y",))
    model = choosing(shape, first, branch(("Abs", "x", "a"), ("Mul", "a", "x", "y"), outputs=("y",)))
    check(model, 4)
    profile = build(model).profile(np.ones((4, 5), "float32"), np.array(True))
    assert "fused_tir_exp_add_tir_sqrt" in str(profile)


@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
def test_branches_in_branches(shape: tuple[Any, ...]) -> None:
    inner = helper.make_node(
        "If",
        ["flag"],
        ["y"],
        then_branch=branch(("Exp", "a", "b"), ("Add", "b", "x", "c"), outputs=("c",)),
        else_branch=branch(("Identity", "a", "d"), outputs=("d",)),
    )
    first = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["a"]), inner],
        "branch",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    check(choosing(shape, first, branch(("Identity", "x", "y"), outputs=("y",))), 4)


def refusal(network: Network, x: np.ndarray, flag: bool) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        network(x, np.array(flag))
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:.*on TVM's own loops")
@pytest.mark.parametrize("case", DIFFERENT.values(), ids=DIFFERENT)
def test_sizes_fit_the_branch_that_runs(case: Sizes) -> None:
    model = choosing(case.shape, case.then_branch, case.else_branch, **case.constants)
    network = build(model)
    assert [each.text for each in network._conditions.all] == case.conditions
    for flag, shapes in case.fitting.items():
        for shape in shapes:
            x = np.random.default_rng(2).standard_normal(shape).astype("float32")
            (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "flag": np.array(flag)})
            np.testing.assert_allclose(network(x, np.array(flag)), expected, rtol=1e-5, atol=1e-5)
            if shape not in case.fitting[not flag]:
                assert "expected sizes for which" in refusal(network, x, not flag)


def test_sizes_fit_the_branch_in_a_branch(tmp_path: Path) -> None:
    """A network in a file checks them, too, and a profile does."""
    case = DIFFERENT["reshape"]
    inner = helper.make_node("If", ["flag"], ["y"], then_branch=reshaped("fours"), else_branch=reshaped("fives"))
    values = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    first = helper.make_graph([inner], "branch", [], values)
    # TVM has a type of its own for names of more than seven letters.
    model = choosing(("batch_size", "m"), first, reshaped("sixes"), **case.constants, fives=[-1, 5])
    built = build(model)
    built.export(tmp_path / "branches.so")
    for network in (built, load(tmp_path / "branches.so")):
        assert network(np.ones((2, 2), "float32"), np.array(True)).shape == (1, 4)
        text = refusal(network, np.ones((2, 5), "float32"), True)
        expected = "expected sizes for which batch_size * m == batch_size * m // 4 * 4: Reshape"
        assert text.startswith(f"sizes is {{'batch_size': 2, 'm': 5}}; {expected}")
        with pytest.raises(InvalidArgumentError, match="batch_size \\* m // 6"):
            network.profile(np.ones((2, 5), "float32"), np.array(False), repeat=1)
