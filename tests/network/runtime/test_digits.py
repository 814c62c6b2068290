"""Networks whose numbers would lose digits, or take long: sums of narrow types, and powers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.shared.network_graph import Graph, operators
from tvmconv.network import build, import_model
from tvmconv.network.passes.arithmetic import simplify_powers
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES

SUMS: dict[str, Callable[[Graph], str]] = {
    "mean of planes": lambda graph: graph.node("GlobalAveragePool", "x"),
    "mean of images": lambda graph: graph.node("ReduceMean", "x", axes=[1, 2, 3]),
    "pooling": lambda graph: graph.node("AveragePool", "x", kernel_shape=[60, 64]),
    "matrix product": lambda graph: graph.node(
        "MatMul", graph.node("Flatten", "x"), graph.constant(np.full((2 * 64 * 64, 2), 1 / 1024))
    ),
    "batched product": lambda graph: graph.node("MatMul", "x", graph.constant(np.full((2, 64, 64), 1 / 64))),
    "convolution left to TVM": lambda graph: graph.node(
        "ConvTranspose",
        graph.node("Reshape", "x", graph.constant([1, 2048, 2, 2], "int64")),
        graph.constant(np.full((2048, 1, 2, 2), 1 / 1024)),
        pads=[1, 1, 1, 1],
    ),
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", SUMS)
def test_narrow_types_are_summed_in_float32(name: str, dtype: str) -> None:
    """In float16 a sum of ones ends at 2048, in bfloat16 at 256."""
    narrow, double = (Graph((1, 2, 64, 64), each, opset=13) for each in (dtype, "float64"))
    x = np.random.default_rng(3).uniform(0.5, 1.5, (1, 2, 64, 64)).astype(dtype)
    (expected,) = ReferenceEvaluator(double.model(SUMS[name](double))).run(None, {"x": x.astype("float64")})
    y = build(narrow.model(SUMS[name](narrow)))(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype("float64"), expected, rtol=2 * STORAGE_TYPES[dtype].unit)


@pytest.mark.parametrize("beta", [0.75, 0.5, 0.7])
def test_powers_of_local_response_normalization(beta: float) -> None:
    graph = Graph((2, 8, 9, 11))
    imported = import_model(graph.model(graph.node("LRN", "x", size=5, alpha=0.3, beta=beta, bias=2.0)))
    assert operators(imported.mod).count("relax.power") == 1
    roots = {0.75: 2, 0.5: 1, 0.7: 0}[beta]
    simplified = operators(simplify_powers(imported.mod))
    assert (simplified.count("relax.sqrt"), simplified.count("relax.power")) == (roots, int(roots == 0))
    x = np.random.default_rng(3).standard_normal((2, 8, 9, 11))
    squares = np.pad(x**2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    expected = x / (2 + 0.3 / 5 * sum(squares[:, i : i + 8] for i in range(5))) ** beta
    np.testing.assert_allclose(build(imported)(x.astype("float32")), expected, rtol=0, atol=4e-6)


def test_a_power_may_have_more_axes_than_what_it_is_of() -> None:
    graph = Graph((2, 3))
    built = build(graph.model(graph.node("Pow", "x", graph.constant([[[0.5]]]))))
    x = np.array([[1, 4, 9], [16, 25, 36]], "float32")
    assert built.outputs[0].shape == (1, 2, 3)
    np.testing.assert_allclose(built(x), [[[1, 2, 3], [4, 5, 6]]], rtol=1e-6)
