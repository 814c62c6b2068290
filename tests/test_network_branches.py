"""Branches of a network: their operators are fused as others are, and open sizes may be those of what they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from network_graph import Graph
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tvmconv.network import build

SIZES = {"fixed": (4, 5), "open": ("rows", 5)}


def branch(*nodes: tuple[str, ...], outputs: tuple[str, ...]) -> onnx.GraphProto:
    """Return a branch of nodes, each an operator, its inputs and its output."""
    made = [helper.make_node(name, inputs, [output]) for name, *inputs, output in nodes]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    return helper.make_graph(made, "branch", [], values)


def choosing(shape: tuple[Any, ...], then_branch: onnx.GraphProto, else_branch: onnx.GraphProto) -> onnx.ModelProto:
    """Return a model of an input "flag" that chooses between two branches of one result each."""
    graph = Graph(shape)
    graph.inputs.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, ()))
    chosen = graph.node("If", "flag", then_branch=then_branch, else_branch=else_branch)
    return graph.model(graph.node("Neg", chosen))


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
