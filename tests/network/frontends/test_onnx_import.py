"""Steps on an ONNX model before Relax imports it, and refusals of models that Relax would misread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.shared.network_graph import Graph, check_network, normal
from tvmconv.integrations import onnx_backend
from tvmconv.network import Model, TensorSpec, build, import_model
from tvmconv.network.frontends.onnx.importer import inline_functions
from tvmconv.network.graph.graph import blocks_of, operator_name
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError

X = (2, 8, 9, 11)


def check(model: onnx.ModelProto, x_shape: Sequence[int] = X, **arguments: Any) -> None:
    check_network(build(import_model(model, **arguments)), model, normal(*x_shape))


def transposed(g: Graph) -> str:
    return g.node("Conv", "x", g.node("Transpose", g.random(3, 3, 8, 4, scale=0.1), perm=[3, 2, 0, 1]))


def dequantized(g: Graph) -> str:
    values = np.arange(4 * 8 * 9).reshape(4, 8, 3, 3) % 255 - 127
    scales = g.constant([1e-3, 2e-3, 3e-3, 4e-3])
    return g.node("Conv", "x", g.node("DequantizeLinear", g.constant(values, "int8"), scales, axis=0))


def from_a_number(g: Graph) -> str:
    value = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [0.25])
    return g.node("Conv", "x", g.node("ConstantOfShape", g.constant([4, 8, 3, 3], "int64"), value=value))


def flattened(g: Graph) -> str:
    """Return x.view(x.size(0), -1) as torch exports it, behind a convolution."""
    y = g.conv("x", (4, 8, 3, 3))
    batch = g.node("Gather", g.node("Shape", y), g.constant(0, "int64"), axis=0)
    sizes = [g.node("Unsqueeze", batch, g.constant([0], "int64")), g.constant([-1], "int64")]
    return g.node("Reshape", y, g.node("Concat", *sizes, axis=0))


def interleaved(g: Graph, x: str) -> str:
    """Return both halves of the channels in turns, as torch exports `chunk`, `stack` and `reshape` of an open batch."""

    def size(y: str, axis: int) -> str:
        return g.node("Gather", g.node("Shape", y), g.constant(axis, "int64"), axis=0)

    channels = g.node("Gather", g.node("Shape", x), g.constant([1], "int64"), axis=0)
    half = g.node("Div", channels, g.constant([2], "int64"))
    first, axis = g.constant([0], "int64"), g.constant([1], "int64")
    left, right = g.node("Slice", x, first, half, axis), g.node("Slice", x, half, channels, axis)
    axis = g.constant([2], "int64")
    stacked = g.node("Concat", *(g.node("Unsqueeze", each, axis) for each in (left, right)), axis=2)
    sizes = [size(left, 0), g.node("Mul", size(left, 1), g.constant(2, "int64")), size(left, 2), size(left, 3)]
    shape = g.node("Concat", *(g.node("Unsqueeze", each, g.constant([0], "int64")) for each in sizes), axis=0)
    return g.node("Reshape", stacked, shape)


def test_sizes_that_follow_from_one_another() -> None:
    """What is known of a shape makes other shapes known, though the batch is open."""
    graph = Graph(("n", 8, 6, "w"))
    model = graph.model(graph.conv(interleaved(graph, interleaved(graph, "x")), (4, 8, 1, 1)))
    assert import_model(model).outputs[0].shape == ("n", 4, 6, "w")
    for batch in (1, 3):
        check(model, (batch, 8, 6, 5))


@pytest.mark.parametrize("body", [transposed, dequantized, from_a_number, flattened], ids=lambda body: body.__name__)
def test_nodes_that_compute_constants(body: Callable[[Graph], str]) -> None:
    graph = Graph(X)
    model = graph.model(body(graph))
    imported = import_model(model)
    assert set(operators(imported)) <= {"relax.nn.conv2d", "relax.reshape", "relax.dequantize"}
    (convolution,) = imported.convolutions()
    assert convolution.workload is not None
    model.opset_import[0].version = 19  # the reference has DequantizeLinear from there on
    check(model)


def operators(model: Model) -> list[str | None]:
    return [operator_name(value) for block in blocks_of(model.mod) for value in block.values.values()]


@pytest.mark.parametrize(
    ("batch", "expected"), [("batch", ["relax.call_tir", "relax.multiply"]), (2, ["relax.multiply"])]
)
def test_sizes_among_numbers(batch: int | str, expected: list[str]) -> None:
    """An open size that is multiplied with elements is written by a function; a known one is a constant."""
    graph = Graph((batch, 8, 9, 11))
    size = graph.node("Cast", graph.node("Shape", "x", start=0, end=1), to=onnx.TensorProto.FLOAT)
    model = graph.model(graph.node("Mul", "x", size))
    assert operators(import_model(model)) == expected
    check(model, X)


def test_sizes_left_open_are_given() -> None:
    graph = Graph(("batch", 8, "height", 11))
    model = graph.model(flattened(graph))
    (left_open,) = import_model(model).convolutions()
    assert (left_open.description, left_open.open_sizes) == ("conv2d batchx8xheightx11 -> 4, 3x3", ("batch", "height"))
    imported = import_model(model, shapes={"x": X})
    assert imported.inputs == (TensorSpec("x", X, "float32"),)
    assert imported.outputs[0].shape == (2, 4 * 7 * 9)
    assert [str(found.workload) for found in imported.convolutions()] == ["conv2d 2x8x9x11 -> 4, 3x3"]
    check(model, shapes={"x": X})


def test_another_batch_than_the_models() -> None:
    graph = Graph((1, 8, 9, 11))
    check(graph.model(flattened(graph)), shapes={"x": X})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": X}, "shapes is 'y'; expected inputs of the model: x"),
        ({"x": (2, 8)}, "shapes is .2, 8.; expected 4 sizes for x"),
        ({"x": (2, 8, 9, 0)}, "expected 4 sizes for x, from 1 to 2147483647"),
        ({"x": (2, 8, 9, 10**20)}, "expected 4 sizes for x"),
        ({"x": (2, 8, 9, "2*w")}, "expected 4 sizes for x, from 1 to 2147483647 or open as in 'n' or 'n<=64'"),
        ({"x": (2, 8, 9, "9<=w<=8")}, "expected 4 sizes for x"),
        ({"x": (2, 8, 9, "0<=w")}, "expected 4 sizes for x"),
    ],
)
def test_wrong_shapes(shapes: dict[str, Any], message: str) -> None:
    graph = Graph(("batch", 8, 9, 11))
    with pytest.raises(InvalidArgumentError, match=message):
        import_model(graph.model(graph.node("Relu", "x")), shapes=shapes)


def test_functions() -> None:
    """Functions of the model and of ONNX are inlined; Relax lacks ONNX's GroupNormalization."""
    graph = Graph(X)
    y = graph.node("Block", "x", graph.random(4, 8, 3, 3, scale=0.1), domain="mine")
    y = graph.node("GroupNormalization", y, graph.random(4), graph.random(4), num_groups=2)
    graph.opset = 21
    model = graph.model(y)
    nodes = [helper.make_node("Conv", ["a", "w"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("mine", "Block", ["a", "w"], ["c"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert [found.description for found in import_model(model).convolutions()] == ["conv2d 2x8x9x11 -> 4, 3x3 + relu"]
    check(model)
    plain = graph.model("x")
    plain.graph.ClearField("node")
    assert inline_functions(plain, ["Conv"]) is plain


def test_definitions_find_the_types_of_constants() -> None:
    """That of Attention depends on the type of its mask, which no input and no value of the model has."""
    graph = Graph((2, 3, 7, 8), opset=23)
    check(graph.model(graph.node("Attention", "x", "x", "x", graph.random(7, 7))), (2, 3, 7, 8))


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution of X that gives the size of its output."""

    id: str
    output_shape: tuple[int, ...]
    pads: tuple[int, ...]
    output_padding: tuple[int, ...] = (0, 0)
    attributes: tuple[tuple[str, Any], ...] = ()


TRANSPOSED = (
    Transposed("smaller", (16, 19), (2, 3, 1, 2)),
    Transposed("smaller-low", (16, 19), (2, 3, 1, 2), attributes=(("auto_pad", "SAME_LOWER"),)),
    Transposed("smaller-high", (16, 19), (1, 2, 2, 3), attributes=(("auto_pad", "SAME_UPPER"),)),
    Transposed("larger", (20, 24), (0, 0, 0, 0), (1, 0)),
    Transposed("with-output-padding", (19, 22), (1, 2, 0, 1), (1, 1), (("output_padding", [1, 1]),)),
)


@pytest.mark.parametrize("case", TRANSPOSED, ids=lambda case: case.id)
def test_output_shape(case: Transposed) -> None:
    """The result is the same as with explicit padding, by the specification's formula."""

    def model(**attributes: Any) -> onnx.ModelProto:
        graph = Graph(X)
        weight = graph.random(8, 2, 3, 4, scale=0.1)
        return graph.model(graph.node("ConvTranspose", "x", weight, strides=[2, 2], **attributes))

    x = np.random.default_rng(3).standard_normal(X).astype("float32")
    y = build(model(output_shape=case.output_shape, **dict(case.attributes)))(x)
    assert y.shape == (2, 2, *case.output_shape)
    padded = model(pads=case.pads, output_padding=case.output_padding)
    np.testing.assert_array_equal(y, build(padded)(x))
    (expected,) = ReferenceEvaluator(padded).run(None, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def training(g: Graph) -> str:
    vectors = [g.constant(np.ones(8)) for _ in range(4)]
    return g.node("BatchNormalization", "x", *vectors, training_mode=1)


def expanded(g: Graph) -> str:
    g.inputs.append(helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [4]))
    return g.node("Expand", "x", "shape")


def masked(g: Graph) -> str:
    g.nodes.append(helper.make_node("Dropout", ["x", "", g.constant(True, "bool")], ["y", "mask"], name="dropout0"))
    return g.node("Cast", "mask", to=1)


def blocked(g: Graph) -> str:
    return g.node("SpaceToDepth", "x", blocksize=1, mode="CRD")


def thin(g: Graph) -> str:
    return g.node("AveragePool", "x", kernel_shape=[0, 1])


def shapeless(g: Graph) -> str:
    return g.node("AveragePool", "x")


def wide(g: Graph) -> str:
    return g.node("AveragePool", "x", kernel_shape=[99, 1])


def ungrouped(g: Graph) -> str:
    return g.node("GroupNormalization", "x", g.random(3), g.random(3), num_groups=3)


def turned(g: Graph) -> str:
    scales = g.constant([1, 1, 2, 2])
    return g.node("Resize", "x", "", scales, mode="linear", coordinate_transformation_mode="half_turn")


def without_sizes(g: Graph) -> str:
    return g.node("Resize", "x", mode="nearest")


def resized_integers(g: Graph) -> str:
    return g.node("Resize", g.node("Cast", "x", to=onnx.TensorProto.INT32), "", g.constant([1, 1, 2, 2]), mode="linear")


def resized_when_it_runs(g: Graph) -> str:
    g.inputs.append(helper.make_tensor_value_info("scales", onnx.TensorProto.FLOAT, [4]))
    return g.node("Resize", "x", "", "scales", mode="nearest")


def magic(g: Graph) -> str:
    return g.node("GridSample", "x", g.random(2, 4, 4, 2), mode="magic")


MISREAD = {
    shapeless: r"AveragePool \(node .*: it has no kernel_shape",
    thin: r"AveragePool \(node .*: its kernel_shape \[0, 1\] has numbers below 1",
    wide: r"AveragePool \(node .*: it has a window of 99 that is larger than its input of ",
    ungrouped: r"GroupNormalization \(node .*: it needs channels that are a multiple of its 3 groups, not 8",
    turned: r"Resize \(node .*: the coordinate_transformation_mode half_turn is unknown",
    without_sizes: r"Resize \(node .*: it has neither scales nor sizes for 4 axes",
    resized_integers: r"Resize \(node .*: the mode linear for int32 is not supported.*floating-point",
    resized_when_it_runs: r"Resize \(node .*: its scales is known only when the model runs.*a constant",
    magic: r"GridSample \(node .*: the mode magic with zeros is unknown",
    training: r"BatchNormalization \(node 'batchnormalization0'\): Relax ignores its training_mode.*in eval mode",
    masked: r"Dropout \(node 'dropout0'\): it is in training mode.*in eval mode",
    expanded: r"Expand \(node 'expand0'\): its shape is known only when the model runs",
    blocked: r"SpaceToDepth \(node 'spacetodepth0'\): Relax ignores its mode",
}


@pytest.mark.parametrize("body", MISREAD, ids=lambda body: body.__name__)
def test_nodes_that_relax_would_misread_are_refused(body: Callable[[Graph], str]) -> None:
    graph = Graph(X)
    with pytest.raises(UnsupportedModelError, match=MISREAD[body]) as caught:
        import_model(graph.model(body(graph)))
    assert caught.value.exit_code == 3


def of_nothing(operator: str, dtype: str) -> onnx.ModelProto:
    """Return a model that reduces no elements of an integer type along the second axis of x."""
    graph = Graph((2, 3))
    start, end, axis = (graph.constant([number], "int64") for number in (0, 0, 1))
    empty = graph.node("Slice", "x", start, end, axis)
    integers = graph.node("Cast", empty, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    return graph.model(graph.node("Cast", graph.node(operator, integers), to=onnx.TensorProto.FLOAT))


@pytest.mark.parametrize(
    ("operator", "dtype", "expected"),
    [("ReduceMax", "int8", -128), ("ReduceMin", "int8", 127), ("ReduceMax", "bool", 0), ("ReduceSum", "int32", 0)],
)
def test_reductions_of_no_elements(operator: str, dtype: str, expected: float) -> None:
    y = build(of_nothing(operator, dtype))(np.ones((2, 3), "float32"))
    assert y.tolist() == [[expected]]


@pytest.mark.parametrize(("operator", "expected"), [("ReduceMax", True), ("ReduceMin", False)])
def test_extremes_of_booleans(operator: str, expected: bool) -> None:
    (y,) = onnx_backend.run_node(helper.make_node(operator, ["x"], ["y"], keepdims=0), [np.array([True, False])])
    assert y.tolist() == expected


def test_the_mean_of_no_integers_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="ReduceMean .*: the mean of no elements of int32 is no number"):
        import_model(of_nothing("ReduceMean", "int32"))


def test_a_mask_that_nobody_reads() -> None:
    graph = Graph(X)
    graph.nodes.append(helper.make_node("Dropout", ["x"], ["y", "mask"]))
    check(graph.model("y"))


NAMES = (("None", "in", "None_", "in_"), ("batch.size", "n + 1", "batch_size", "n_1"), ("a.b", "a_b", "a_b_", "a_b"))
"""Names of two open sizes in a model, and the identifiers that they have in a network."""


@pytest.mark.parametrize("names", NAMES, ids=lambda each: each[0])
def test_names_of_open_sizes_are_identifiers(names: tuple[str, ...]) -> None:
    graph = Graph((names[0], names[1], 4))
    network = build(graph.model(graph.node("Relu", "x")))
    assert network.inputs[0].shape == (names[2], names[3], 4)
    assert network(np.ones((2, 3, 4), "float32")).shape == (2, 3, 4)
