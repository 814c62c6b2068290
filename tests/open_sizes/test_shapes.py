"""Shapes of ONNX models that are computed from open sizes: right or refused, as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state

from tests.shared.network_graph import Graph
from tvmconv.network import build, import_model
from tvmconv.problem.errors import InvalidArgumentError, TvmconvError, UnsupportedModelError

FARTHEST = 2**63 - 1
INT32, INT64, FLOAT = onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT


@dataclass
class Case:
    name: str
    body: Callable[[Graph], str]
    """Adds the nodes behind "x"; returns the output's name."""
    shape: Sequence[int | str] = (1, 3, "h", 4)
    fitting: Sequence[int] = (1, 6, 7)
    """Sizes for "h" that ONNX Runtime takes."""
    refused: Sequence[int] = ()
    """Sizes for "h" that ONNX Runtime refuses."""
    opset: int = 17
    node: str = ""
    """The node that the refusal names."""
    expected: Sequence[Any] = field(default_factory=list)
    """The shape of the output as the model tells it."""


def size(g: Graph, axis: int, dtype: int = INT64) -> str:
    """Add the size of an axis of "x" in a type, as an array of one element."""
    index = g.constant([axis], "int64")
    return g.node("Slice", g.node("Cast", g.node("Shape", "x"), to=dtype), index, g.constant([axis + 1], "int64"))


def cut(g: Graph, x: str, start: int | str, end: int | str, step: int = 1, axis: int = 2) -> str:
    bounds = [each if isinstance(each, str) else g.constant([each], "int64") for each in (start, end)]
    return g.node("Slice", x, *bounds, g.constant([axis], "int64"), g.constant([step], "int64"))


def reshaped(g: Graph, *sizes: int, **attributes: Any) -> str:
    return g.node("Reshape", "x", g.constant(sizes, "int64"), **attributes)


def of_half_the_rows(g: Graph, dtype: int) -> str:
    """Keep the first half of the rows, counted in a type."""
    half = g.node("Div", size(g, 2, dtype), g.constant([2], {INT32: "int32", INT64: "int64", FLOAT: "float32"}[dtype]))
    whole = g.node("Cast", g.node("Floor", half) if dtype == FLOAT else half, to=INT64)
    return cut(g, "x", 0, whole)


def flattened_through_int32(g: Graph) -> str:
    rest = g.node("Cast", g.constant([-1], "int32"), to=INT32)
    shape = g.node("Concat", size(g, 2, INT32), rest, axis=0)
    return g.node("Reshape", "x", g.node("Cast", shape, to=INT64))


def pyramid(g: Graph, join: str) -> str:
    """Join the rows with half of them, each twice, as feature pyramids do."""
    small = g.node("MaxPool", "x", kernel_shape=[2, 1], strides=[2, 1])
    return g.node(join, "x", g.node("Resize", small, "", g.constant([1, 1, 2, 1], "float32"), mode="nearest"))


def positions(g: Graph) -> str:
    rows = g.node("Squeeze", size(g, 2), g.constant([0], "int64"))
    counted = g.node("Range", g.constant(0, "int64"), rows, g.constant(1, "int64"))
    column = g.node("Unsqueeze", g.node("Cast", counted, to=FLOAT), g.constant([1], "int64"))
    return g.node("Softmax", g.node("Add", "x", column))


def differences(g: Graph) -> str:
    return g.conv(g.node("Sub", cut(g, "x", 1, FARTHEST), cut(g, "x", 0, -1)), (2, 3, 1, 1))


def whole(g: Graph) -> str:
    """Return x in the shape that it has, as torch's exporters expand it: -1 stands for the size as it is."""
    wanted = g.constant([-1, 3, -1, 4], "int64")
    unknown = g.node("Equal", wanted, g.constant([-1], "int64"))
    return g.node("Expand", "x", g.node("Where", unknown, g.node("Shape", "x"), wanted))


def parts(g: Graph, *sizes: int) -> str:
    name = g.node("Split", "x", g.constant(sizes, "int64"), axis=2)
    g.nodes[-1].output.extend(f"{name}_{i}" for i in range(1, len(sizes)))
    return name


def filled(g: Graph) -> str:
    value = onnx.numpy_helper.from_array(np.array([2.5], "float32"))
    shape = g.node("Concat", size(g, 2), g.constant([4], "int64"), axis=0)
    return g.node("Mul", "x", g.node("ConstantOfShape", shape, value=value))


def tiled(g: Graph) -> str:
    return g.node(
        "Tile", "x", g.node("Concat", g.constant([1, 1], "int64"), size(g, 2), g.constant([2], "int64"), axis=0)
    )


def with_a_mask(g: Graph) -> str:
    """Add rows of a known number: the open one has to be that, or 1."""
    return g.conv(g.node("Add", "x", g.random(1, 1, 5, 1)), (2, 3, 1, 1))


def rows_and_five(g: Graph) -> str:
    return cut(g, "x", 0, g.node("Add", size(g, 2), g.constant([5], "int64")))


def last_five(g: Graph) -> str:
    return cut(g, "x", g.node("Sub", size(g, 2), g.constant([5], "int64")), FARTHEST)


def by_rows(g: Graph) -> str:
    rows = g.node("Shape", "x", start=2, end=3)
    return g.node("Reshape", "x", g.node("Concat", rows, g.constant([-1], "int64"), axis=0))


def by_rows_of_opset_11(g: Graph) -> str:
    """Reshape by the number of rows, to which Unsqueeze gives an axis by its attribute."""
    rows = g.node("Gather", g.node("Shape", "x"), g.constant(2, "int64"), axis=0)
    shape = g.node("Concat", g.node("Unsqueeze", rows, axes=[0]), g.constant([-1], "int64"), axis=0)
    return g.node("Reshape", "x", shape)


def without_a_single_row(g: Graph) -> str:
    """Add torch's squeeze of the rows: an If, with a result of 3 axes where there is one row, else of 4."""
    rows = g.constant([2], "int64")
    one = g.node("Equal", size(g, 2), g.constant([1], "int64"))
    then_branch = branch(onnx.helper.make_node("Squeeze", ["x", rows], ["squeezed"]))
    else_branch = branch(onnx.helper.make_node("Identity", ["x"], ["whole"]))
    return g.node("If", one, then_branch=then_branch, else_branch=else_branch)


def of_three_axes(g: Graph, x: str) -> str:
    return g.node("Concat", x, g.random(1, 3, 2), axis=2)


def largest_rows(g: Graph) -> str:
    """Keep the three largest numbers of each column, fewer where there are fewer rows."""
    values = g.node("TopK", "x", g.node("Min", size(g, 2), g.constant([3], "int64")), axis=2)
    g.nodes[-1].output.append("indices")
    return values


def one_hot_of_rows(g: Graph) -> str:
    rows = g.node("Squeeze", size(g, 2), g.constant([0], "int64"))
    return g.node("OneHot", g.node("ArgMax", "x", axis=2, keepdims=0), rows, g.constant([-1.0, 2.0]), axis=1)


def rolled(g: Graph, rows: str, shift: int) -> str:
    """Move rows as torch's exporters write a roll: by the rest of the negative distance by their number."""
    index = g.node("Mod", g.constant([-shift], "int64"), rows)
    return g.node("Concat", cut(g, "x", index, FARTHEST), cut(g, "x", 0, index), axis=2)


def of_pairs(g: Graph) -> str:
    """Return the number of rows without a last one that has no second; dividing by 0 is refused."""
    two = g.constant([2], "int64")
    return g.node("Mul", g.node("Div", size(g, 2), two), two)


def rows_but_one(g: Graph) -> str:
    """Return the shape (rows without one, the rest), whose rest is a number."""
    rows = g.node("Sub", size(g, 2), g.constant([1], "int64"))
    return g.node("Concat", rows, g.constant([-1], "int64"), axis=0)


def twice_the_rows(g: Graph, operator: str, *first: str) -> str:
    """Resize by scales that are the quotients of sizes, as torch's exporters of old opsets wrote them."""
    sizes = g.node("Cast", g.node("Shape", "x"), to=FLOAT)
    doubled = g.node("Floor", g.node("Mul", sizes, g.constant([1, 1, 2, 1.5], "float32")))
    return g.node(operator, "x", *first, g.node("Div", doubled, sizes), mode="nearest")


CHANNELS = {"shape": (2, "h", 5, 4), "fitting": [3], "refused": [1, 4]}
EVEN = {"fitting": [2, 6], "refused": [3, 7]}
PAIRS = {"fitting": [2, 6], "refused": [1, 7]}

CASES = [
    Case("known rows", lambda g: reshaped(g, 1, 3, 2, 12), fitting=[6], refused=[1, 7], node="Reshape (node 'reshape"),
    Case("pairs of rows", lambda g: reshaped(g, 1, 3, -1, 2, 4), node="Reshape (node 'reshape", **PAIRS),
    Case("reshape by eight", lambda g: reshaped(g, 1, -1, 8), node="Reshape (node 'reshape", **PAIRS),
    Case("reshape keeps a size", lambda g: reshaped(g, 0, -1, 0, 2), expected=[1, 6, "h", 2]),
    Case("flatten through int32", flattened_through_int32, expected=["h", 12]),
    Case("half in int32", partial(of_half_the_rows, dtype=INT32), expected=[1, 3, "h // 2", 4]),
    Case("half in int64", partial(of_half_the_rows, dtype=INT64), expected=[1, 3, "h // 2", 4]),
    Case("half in float32", partial(of_half_the_rows, dtype=FLOAT), expected=[1, 3, "h // 2", 4]),
    Case("pyramid, Add", partial(pyramid, join="Add"), node="Add (node 'add", **EVEN),
    Case("pyramid, Mul", partial(pyramid, join="Mul"), node="Mul (node 'mul", **EVEN),
    Case("pyramid, Max", partial(pyramid, join="Max"), node="Max (node 'max", **EVEN),
    Case("positions", positions),
    Case("differences of rows", differences, fitting=[2, 6, 7]),
    Case("expand to itself", whole, expected=[1, 3, "h", 4]),
    Case("split", lambda g: parts(g, 2, 4), fitting=[6], refused=[1, 5, 9], node="Split (node 'split"),
    Case("filled", filled, expected=[1, 3, "h", 4]),
    Case("tiled", tiled, fitting=[1, 3, 4]),
    Case("mask of five rows", with_a_mask, fitting=[1, 5], refused=[2, 6], node="Add (node 'add"),
    Case("space to depth", lambda g: g.node("SpaceToDepth", "x", blocksize=2), node="SpaceToDepth", **EVEN),
    Case("every second row from the end", lambda g: cut(g, "x", -1, -FARTHEST, -2)),
    Case("second to ninth last row", lambda g: cut(g, "x", 2, -9, 2), fitting=[1, 11, 12, 15]),
    Case("rows beyond the end", lambda g: cut(g, "x", 5, 100), fitting=[1, 5, 6]),
    Case("all rows and five more", rows_and_five),
    Case("last five rows", last_five, fitting=[3, 5, 9]),
    Case(
        "squeeze by If, 3 axes",
        lambda g: of_three_axes(g, without_a_single_row(g)),
        fitting=[1],
        refused=[2],
        node="If (node 'if",
    ),
    Case(
        "squeeze by If, 4 axes",
        lambda g: g.conv(without_a_single_row(g), (2, 3, 1, 1)),
        fitting=[2, 5],
        refused=[1],
        node="If (node 'if",
    ),
    Case(
        "squeeze without axes, 2 axes",
        lambda g: g.node("MatMul", g.node("Squeeze", "x"), g.random(4, 3)),
        fitting=[2, 5],
        expected=["h", 3],
        shape=(1, "h", 1, 4),
    ),
    Case(
        "squeeze without axes, 1 axis",
        lambda g: g.node("Concat", g.node("Squeeze", "x"), g.random(2), axis=0),
        fitting=[1],
        refused=[2],
        node="Squeeze (node 'squeeze",
        shape=(1, "h", 4),
    ),
    Case("largest rows", largest_rows),
    Case("one hot of rows", one_hot_of_rows),
    Case("rolled rows", lambda g: rolled(g, size(g, 2), 2)),
    Case("rolled by pairs", lambda g: rolled(g, of_pairs(g), 5), refused=[1], fitting=[2, 6, 7], node="Mod (node 'mod"),
    Case(
        "rows without the first",
        lambda g: g.node("Reshape", cut(g, "x", 1, FARTHEST), rows_but_one(g)),
        fitting=[2, 6, 7],
        expected=["h + -1", 12],
    ),
    Case("twice the rows, opset 9", lambda g: twice_the_rows(g, "Upsample"), opset=9, expected=[1, 3, "h * 2", 6]),
    Case("twice the rows, opset 10", lambda g: twice_the_rows(g, "Resize"), opset=10, expected=[1, 3, "h * 2", 6]),
    Case("by rows of opset 11", by_rows_of_opset_11, opset=11, expected=["h", 12]),
    Case("by rows", by_rows, expected=["h", 12]),
    Case("channels", lambda g: g.conv("x", (4, 3, 1, 1)), node="Conv (node 'conv0')", **CHANNELS),
    Case("channels of a norm", lambda g: g.batch_norm("x", 3), node="BatchNormalization", **CHANNELS),
    Case("columns", lambda g: g.node("MatMul", "x", g.random(5, 2)), (2, 4, "h"), [5], [1, 6], node="MatMul"),
]


REFUSALS = tuple(getattr(onnxruntime_pybind11_state, name) for name in ("Fail", "InvalidArgument", "RuntimeException"))


def answer(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray] | None:
    """Return the outputs of ONNX Runtime; None where it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    try:
        return list(session.run(None, {"x": x}))
    except REFUSALS:
        return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_open_shapes(case: Case) -> None:
    graph = Graph(case.shape, opset=case.opset)
    model = graph.model(case.body(graph))
    imported = import_model(model)
    if case.expected:
        assert imported.outputs[0].shape == tuple(case.expected)
    network = build(imported)
    for rows in (*case.fitting, *case.refused):
        shape = [rows if size == "h" else int(size) for size in case.shape]
        x = np.random.default_rng(rows).standard_normal(shape).astype("float32")
        expected = answer(model, x)
        if rows in case.refused:
            assert expected is None
            with pytest.raises(InvalidArgumentError, match=rf"'h': {rows}\b") as caught:
                network(x)
            assert case.node in str(caught.value)
        else:
            assert expected is not None
            y = network(x)
            assert y.shape == expected[0].shape
            np.testing.assert_allclose(y, expected[0], rtol=0, atol=2e-5)


def test_ranks_that_outputs_tell() -> None:
    """Both ranks of a Squeeze fit the model, and its output says which one is meant."""
    graph = Graph(("n", 4))
    model = graph.model(graph.node("Relu", graph.node("Squeeze", "x")))
    assert import_model(model).outputs[0].shape == ("n", 4)
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "classes"
    network = build(model)
    assert network.outputs[0].shape == (4,)
    with pytest.raises(InvalidArgumentError, match=r"n == 1: Squeeze \(node 'squeeze0'\) has a result whose rank"):
        network(np.ones((2, 4), "float32"))


def test_functions_of_a_batch_that_has_to_be_one() -> None:
    """Functions that an importer wrote for any batch fuse with those of a batch of 1."""
    graph = Graph(("n", 8, "h", 4))
    largest = graph.node("ReduceMax", graph.node("ReduceMax", "x", axes=[3], keepdims=0), axes=[2], keepdims=0)
    model = graph.model(graph.node("Concat", graph.node("Squeeze", largest), graph.random(2), axis=0))
    x = np.random.default_rng(1).standard_normal((1, 8, 5, 4)).astype("float32")
    np.testing.assert_array_equal(build(model)(x), (answer(model, x) or [])[0])


def test_sizes_of_other_names() -> None:
    """Names of sizes that are words of Python, or none of its names, become names."""
    graph = Graph(("class", "batch.size", "T", "max"))
    network = build(graph.model(graph.node("Relu", "x")))
    assert network.inputs[0].shape == ("class_", "batch_size", "T_", "max_")
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")
    np.testing.assert_array_equal(network(x), np.maximum(x, 0))


def test_a_size_of_zero_is_refused() -> None:
    graph = Graph((0, 3, 4))
    with pytest.raises(UnsupportedModelError, match=r"Relu \(node 'relu0'\): x is without elements"):
        import_model(graph.model(graph.node("Relu", "x")))


def branch(*nodes: onnx.NodeProto, **weights: Any) -> onnx.GraphProto:
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    output = onnx.helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
    return onnx.helper.make_graph(list(nodes), "branch", [], [output], tensors)


def chosen(graph: Graph, condition: str) -> str:
    """Add a choice between two convolutions, one with a weight of the model, one with a weight of its branch."""
    weight = graph.random(2, 3, 1, 1)
    inner = np.random.default_rng(1).standard_normal((2, 3, 1, 1)).astype("float32")
    then_branch = branch(onnx.helper.make_node("Conv", ["x", weight], ["inside"], "first"))
    else_branch = branch(onnx.helper.make_node("Conv", ["x", "own"], ["inside"], "second"), own=inner)
    return graph.node("If", condition, then_branch=then_branch, else_branch=else_branch)


@pytest.mark.parametrize("rows", [4, 5, "h"])
def test_choice_between_branches(rows: int | str) -> None:
    """A condition that sizes decide is known when the model is imported, unless they are open."""
    graph = Graph((1, 3, rows, 4))
    number = graph.node("Squeeze", size(graph, 2))
    model = graph.model(chosen(graph, graph.node("Less", number, graph.constant(5, "int64"))))
    imported = import_model(model)
    assert len(imported.convolutions()) == (2 if rows == "h" else 1)
    network = build(imported)
    for height in [4, 5, 9] if rows == "h" else [int(rows)]:
        x = np.random.default_rng(height).standard_normal((1, 3, height, 4)).astype("float32")
        (expected,) = answer(model, x) or [np.nan]
        np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-5)


def test_every_error_is_of_this_library() -> None:
    """Values that a model decides are in no condition; where sizes have to agree, the model is refused."""
    graph = Graph((8,))
    rows = graph.node("NonZero", "x")
    with pytest.raises(TvmconvError, match=r"Add \(node 'add2'\): it needs sizes that are equal, or 1"):
        import_model(graph.model(graph.node("Add", graph.node("Cast", rows, to=FLOAT), "x")))
