"""Branches of a network: their operators are fused as others are, and open sizes may be those of what they read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from network_graph import Graph
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvmconv import load
from tvmconv.errors import InvalidArgumentError
from tvmconv.network import Network, build

SIZES = {"fixed": (4, 5), "open": ("rows", 5)}


def branch(*nodes: tuple[str, ...], outputs: tuple[str, ...]) -> onnx.GraphProto:
    """Return a branch of nodes, each an operator, its inputs and its output."""
    made = [helper.make_node(name, inputs, [output]) for name, *inputs, output in nodes]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    return helper.make_graph(made, "branch", [], values)


def choosing(
    shape: tuple[Any, ...], then_branch: onnx.GraphProto, else_branch: onnx.GraphProto, **constants: Any
) -> onnx.ModelProto:
    """Return a model of an input "flag" that chooses between two branches of one result each, which read constants.

    The result is negated, unless there are constants: they may make two shapes of it, which no operator takes.
    """
    graph = Graph(shape)
    graph.weights += [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph.inputs.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, ()))
    chosen = graph.node("If", "flag", then_branch=then_branch, else_branch=else_branch)
    return graph.model(chosen if constants else graph.node("Neg", chosen))


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


@dataclass(frozen=True)
class Sizes:
    """A model whose branches take different sizes."""

    shape: tuple[Any, ...]
    then_branch: onnx.GraphProto
    else_branch: onnx.GraphProto
    constants: dict[str, Any]
    fitting: dict[bool, list[tuple[int, ...]]]
    """Shapes that fit a branch, by its flag; those of the other flag are refused, unless they are in both lists."""
    conditions: list[str] = field(default_factory=list)
    """The conditions of all calls."""


def reshaped(to: str) -> onnx.GraphProto:
    return branch(("Reshape", "x", to, f"to_{to}"), outputs=(f"to_{to}",))


DIFFERENT = {
    "reshape": Sizes(
        ("n", "m"),
        reshaped("fours"),
        reshaped("sixes"),
        {"fours": [-1, 4], "sixes": [-1, 6]},
        {True: [(2, 2), (4, 3)], False: [(6, 1), (4, 3)]},
    ),
    "rows": Sizes(
        ("n", "m"),
        branch(("MatMul", "x", "long", "a"), outputs=("a",)),
        branch(("MatMul", "x", "short", "b"), outputs=("b",)),
        {"long": np.ones((8, 2), "float32"), "short": np.ones((5, 2), "float32")},
        {True: [(2, 8)], False: [(3, 5)]},
    ),
    "channels": Sizes(
        (1, "c", "h", "w"),
        branch(("Conv", "x", "colours", "a"), outputs=("a",)),
        branch(("Conv", "x", "grey", "b"), outputs=("b",)),
        {"colours": np.ones((2, 3, 3, 3), "float32"), "grey": np.ones((2, 1, 1, 1), "float32")},
        {True: [(1, 3, 5, 4)], False: [(1, 1, 5, 4), (1, 1, 2, 2)]},
    ),
    "indices": Sizes(
        ("n",),
        branch(("Gather", "x", "far", "a"), outputs=("a",)),
        branch(("Gather", "x", "near", "b"), outputs=("b",)),
        {"far": [0, 7], "near": [1, 0]},
        {True: [(8,)], False: [(8,), (3,)]},
    ),
    # TVM computes n * m // (m - 3) when a call begins: it has to have a value in each.
    "divisors": Sizes(
        ("n", "m"),
        branch(
            ("Shape", "x", "sizes"),
            ("Gather", "sizes", "last", "size"),
            ("Sub", "size", "three", "less"),
            ("Concat", "less", "rest", "to"),
            ("Reshape", "x", "to", "a"),
            ("Abs", "a", "b"),
            outputs=("b",),
        ),
        branch(("Identity", "x", "c"), outputs=("c",)),
        {"last": [1], "three": [3], "rest": [-1]},
        {True: [(4, 5)], False: [(4, 5)]},
        ["n * m == (m + -3) * (n * m // (m + -3))"],
    ),
}
for node in DIFFERENT["divisors"].then_branch.node:
    if node.op_type == "Concat":
        node.attribute.append(helper.make_attribute("axis", 0))


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
    model = choosing(("n", "m"), first, reshaped("sixes"), **case.constants, fives=[-1, 5])
    built = build(model)
    built.export(tmp_path / "branches.so")
    for network in (built, load(tmp_path / "branches.so")):
        assert network(np.ones((2, 2), "float32"), np.array(True)).shape == (1, 4)
        text = refusal(network, np.ones((2, 5), "float32"), True)
        assert text.startswith("sizes is {'n': 2, 'm': 5}; expected sizes for which n * m == n * m // 4 * 4: Reshape")
        with pytest.raises(InvalidArgumentError, match="n \\* m // 6"):
            network.profile(np.ones((2, 5), "float32"), np.array(False), repeat=1)
