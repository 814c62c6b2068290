"""Networks whose scales and zero points are known only when they run: their sums are those of kernels of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from quantized_graph import Quantized, X, in_integers

import tvmconv
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


def test_weight_of_nine_bits() -> None:
    graph = Quantized(X)
    model = graph.model(sums(graph, (16, 8, 3, 3), dtype="uint8", pads=[1, 1, 1, 1]))
    network = tvmconv.build(model)
    (layer,) = network.layers
    assert layer.kernel == "TVM"
    assert layer.reason.endswith("in int32: its weight less its zero point is no int8")
    np.testing.assert_array_equal(network(IN), reference(model, IN))


def test_open_batch() -> None:
    graph = Quantized(X)
    model = graph.model(CASES["padded"](graph))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    network = tvmconv.build(import_model(model))
    assert in_integers(network) == [True]
    x = np.random.default_rng(6).standard_normal((3, *X[1:])).astype("float32")
    np.testing.assert_array_equal(network(x), reference(model, x))
