"""Models with an If for tests: branches of a few operators, which may take different sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.shared.network_graph import Graph


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
