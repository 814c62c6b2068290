"""Networks whose scales and zero points are known only when they run: their sums are those of kernels of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.shared.quantized_graph import Quantized, X, in_integers
from tvmconv.network import import_model

IN = np.random.default_rng(5).standard_normal(X).astype("float32")


def sums(g: Quantized, shape: tuple[int, ...], dtype: str = "int8", **attributes: object) -> str:
    """Add the sums of products of x, quantized by its range, with random integers."""
    linear = len(shape) == 2
    sizes = {2: (0, -1), 3: (0, 0, -1), 4: (0, 0, 0, -1)}[len(shape)]
    x, zero_point = g.quantize_dynamically(g.node("Reshape", "x", g.constant(sizes, "int64")))
    zero = g.constant(121 if dtype == "uint8" else 0, dtype)
    operator = "MatMulInteger" if linear else "ConvInteger"
    y = g.node(operator, x, g.integers(*shape, dtype=dtype), zero_point, zero, **attributes)
    return g.node("Cast", y, to=onnx.TensorProto.FLOAT)


def reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what ONNX's own implementation computes: ONNX Runtime's sums saturate on CPUs that have AVX2 alone."""
    return np.asarray(ReferenceEvaluator(model).run(None, {"x": x})[0])


CASES: dict[str, Callable[[Quantized], str]] = {
    "padded": lambda g: sums(g, (16, 8, 3, 3), pads=[1, 1, 1, 1]),
    "uneven": lambda g: sums(g, (16, 8, 3, 2), pads=[2, 0, 1, 1], strides=[2, 1]),
    "not-padded": lambda g: sums(g, (16, 8, 1, 1)),
    "depthwise": lambda g: sums(g, (8, 1, 3, 3), pads=[1, 1, 1, 1], group=8),
    "one-axis": lambda g: sums(g, (16, 8, 5), pads=[2, 2]),
    "linear": lambda g: sums(g, (X[1] * X[2] * X[3], 10)),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact(name: str) -> None:
    graph = Quantized(X)
    model = graph.model(CASES[name](graph))
    network = tvmconv.build(model)
    (layer,) = network.layers
    assert in_integers(network) == [True]
    assert layer.kernel in ("tvmconv cpu/dot", "tvmconv cpu/depthwise_dot", "tvmconv cpu/amx", "tvmconv cpu/depthwise")
    np.testing.assert_array_equal(network(IN), reference(model, IN))


NINE_BITS: dict[str, Callable[[Quantized], str]] = {
    "convolution": lambda g: sums(g, (16, 8, 3, 3), dtype="uint8", pads=[1, 1, 1, 1]),
    "linear": lambda g: sums(g, (X[1] * X[2] * X[3], 10), dtype="uint8"),
}
"""Weights in uint8 whose zero point is far from 128: less it they are no int8."""


@pytest.mark.parametrize("name", NINE_BITS)
def test_weights_of_nine_bits(name: str) -> None:
    """They are in int8 less the middle of each filter, which the sums of x are multiplied by."""
    graph = Quantized(X)
    model = graph.model(NINE_BITS[name](graph))
    network = tvmconv.build(model)
    assert all(in_integers(network))
    assert all(layer.kernel != "TVM" for layer in network.layers)
    np.testing.assert_array_equal(network(IN), reference(model, IN))


def test_groups_of_nine_bits_are_in_float32() -> None:
    graph = Quantized(X)
    model = graph.model(sums(graph, (16, 4, 3, 3), dtype="uint8", pads=[1, 1, 1, 1], group=2))
    network = tvmconv.build(model)
    (layer,) = network.layers
    assert layer.kernel == "tvmconv cpu/direct"
    assert layer.reason.endswith("in float32: its weight less its zero point is no int8"), layer.reason
    np.testing.assert_array_equal(network(IN), reference(model, IN))


@pytest.mark.parametrize(("channels", "kernel"), [(32, "tvmconv cpu/direct"), (600, "TVM")], ids=["exact", "too-large"])
def test_open_planes_are_in_float32_where_that_is_exact(channels: int, kernel: str) -> None:
    """No kernel for integers takes open planes. Winograd's transforms would round."""
    graph = Quantized(("n", channels, "h", "w"))
    x, zero_point = graph.quantize_dynamically("x")
    zero = graph.constant(0, "int8")
    y = graph.node("ConvInteger", x, graph.integers(32, channels, 3, 3, dtype="int8"), zero_point, zero)
    model = graph.model(graph.node("Cast", y, to=onnx.TensorProto.FLOAT))
    network = tvmconv.build(model)
    assert {layer.kernel for layer in network.layers} == {kernel}
    for shape in ((1, channels, 24, 24), (2, channels, 9, 7)):
        given = np.random.default_rng(5).standard_normal(shape).astype("float32")
        np.testing.assert_array_equal(network(given), reference(model, given))


def product_of_rows(
    readers: int = 1, dtype: str = "int8", zero: object = 0, kind: str | None = None, each_row: bool = False
) -> onnx.ModelProto:
    """Return products as `quantize_dynamic` writes them, of x ("n", 5, 24), or of integers with a known zero point."""
    rng, nodes = np.random.default_rng(3), []
    weights = {"wz": np.asarray(zero, dtype)}
    element = onnx.TensorProto.FLOAT
    if kind is None:
        nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
    else:
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        nodes.append(onnx.helper.make_node("Identity", ["x"], ["q"]))
        weights["z"] = np.arange(5, dtype=kind).reshape(5, 1) if each_row else np.asarray(7, kind)
    names = []
    for number in range(readers):
        limits = np.iinfo(dtype)
        weights[f"w{number}"] = rng.integers(limits.min, limits.max + 1, (24, 10)).astype(dtype)
        nodes.append(onnx.helper.make_node("MatMulInteger", ["q", f"w{number}", "z", "wz"], [f"i{number}"]))
        names.append(f"i{number}")
    nodes.append(onnx.helper.make_node("Concat", names, ["y"], axis=-1))
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [value("x", element, ["n", 5, 24])],
        [value("y", onnx.TensorProto.INT32, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


PRODUCTS = {
    "int8": product_of_rows(),
    "zero-point": product_of_rows(zero=5),
    "uint8": product_of_rows(dtype="uint8", zero=128),
    "nine-bits": product_of_rows(dtype="uint8", zero=3),
    "a-zero-point-for-each-column": product_of_rows(dtype="uint8", zero=np.arange(10) * 25),
    "three-readers": product_of_rows(readers=3),
    "activations-in-int8": product_of_rows(kind="int8", zero=-4),
    "a-zero-point-for-each-row": product_of_rows(kind="uint8", each_row=True),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_rank_three(name: str) -> None:
    """The rows are of a batch of any size."""
    model = PRODUCTS[name]
    network = tvmconv.build(model)
    assert all(layer.kernel in ("tvmconv cpu/dot", "tvmconv cpu/amx") for layer in network.layers)
    rng, dtype = np.random.default_rng(4), network.inputs[0].dtype
    for batch in (1, 3):
        x = rng.standard_normal((batch, 5, 24)).astype("float32")
        if dtype != "float32":
            x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, x.shape).astype(dtype)
        np.testing.assert_array_equal(network(x), reference(model, x))


def test_numbers_that_are_all_zero() -> None:
    """Their scale is 1, as ONNX defines it, and not a quotient of zeros."""
    model = product_of_rows()
    x = np.zeros((2, 5, 24), "float32")
    np.testing.assert_array_equal(tvmconv.build(model)(x), reference(model, x))


def test_open_batch() -> None:
    graph = Quantized(X)
    model = graph.model(CASES["padded"](graph))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    network = tvmconv.build(import_model(model))
    assert in_integers(network) == [True]
    x = np.random.default_rng(6).standard_normal((3, *X[1:])).astype("float32")
    np.testing.assert_array_equal(network(x), reference(model, x))
