"""The loops of TVM's operators between convolutions on a CPU: threads, fusion, and the numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

from tests.shared.network_graph import Graph
from tvmconv.network import build, import_model
from tvmconv.network.between.cpu.spreading import lower_and_fuse, spread_over_threads
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import cpu_of

LLVM = resolve_target("llvm")


def test_threads_for_pooling() -> None:
    """Large loops are spread over threads, a plane for each; small ones are left alone."""
    graph = Graph((2, 16, 60, 61))
    large = graph.node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    small = graph.node("AveragePool", large, kernel_shape=[15, 15])
    model = graph.model(large, small, graph.node("Softmax", graph.node("Flatten", small)))
    imported = import_model(model)
    mod = spread_over_threads(lower_and_fuse(imported.mod, LLVM), LLVM)
    loops = {var.name_hint: str(func) for var, func in mod.functions.items() if var.name_hint != "main"}
    assert loops["max_pool2d"].count("for ax0_ax1_fused in T.parallel(T.int64(32)):") == 1
    assert "parallel" not in loops["softmax"]
    x = np.random.default_rng(3).standard_normal((2, 16, 60, 61)).astype("float32")
    for y, expected in zip(build(imported)(x), ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [2, 3], ids=["halves", "thirds"])
def test_channels_in_turns(groups: int) -> None:
    """Moving elements and computing them one by one takes one loop nest, without tensors in between."""
    graph = Graph((1, 96, 28, 26))
    parts = [graph.node("Mul", "x", graph.constant(np.float32(2 + i))) for i in range(groups)]
    shape, axis = graph.constant([1, 96 * groups, 28, 26], "int64"), graph.constant([2], "int64")
    turns = graph.node("Concat", *(graph.node("Unsqueeze", part, axis) for part in parts), axis=2)
    model = graph.model(graph.node("Sigmoid", graph.node("Reshape", turns, shape)))
    imported = import_model(model)
    mod = spread_over_threads(lower_and_fuse(imported.mod, LLVM), LLVM)
    (moved,) = (str(func) for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    assert "alloc_buffer" not in moved
    assert "T.parallel(T.int64(96))" in moved
    x = np.random.default_rng(3).standard_normal((1, 96, 28, 26)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(build(imported)(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [24, 80], ids=["few", "several-vectors"])
def test_rows_reduced_to_a_row(columns: int) -> None:
    """Vectors of columns are reduced, where the last axis of what is reduced stays; the last one ends with the row."""
    graph = Graph((2, 33, 34, columns))
    axes = graph.constant([1, 2], "int64")
    model = graph.model(*(graph.node(name, "x", axes, keepdims=0) for name in ("ReduceMean", "ReduceMax")))
    imported = import_model(model)
    mod = spread_over_threads(lower_and_fuse(imported.mod, LLVM), LLVM)
    (text,) = (str(func) for var, func in mod.functions.items() if "max" in var.name_hint)
    assert f"T.vectorized(T.int64({cpu_of(LLVM).lanes}))" in text
    x = np.random.default_rng(3).standard_normal((2, 33, 34, columns)).astype("float32")
    mean, most = build(imported)(x)
    np.testing.assert_allclose(mean, x.astype("float64").mean((1, 2)), atol=1e-6)
    np.testing.assert_array_equal(most, x.max((1, 2)))


def test_reductions_of_open_axes() -> None:
    """A loop that is as long as a call says is not unrolled."""
    graph = Graph((2, 5, "h", "w"))
    most, means = graph.node("ReduceMax", "x", axes=[2]), graph.node("ReduceMean", "x", axes=[3])
    model = graph.model(most, means, graph.node("Softmax", "x", axis=3))
    x = np.random.default_rng(3).standard_normal((2, 5, 7, 9)).astype("float32")
    for y, expected in zip(build(model)(x), ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "parts"), [((1, 2**18), 32), ((3, 99 * 1024), 33), ((1, 65537), 1)], ids=str)
def test_threads_share_long_rows(shape: tuple[int, int], parts: int) -> None:
    """Of few rows threads share the elements, where parts of them are whole vectors."""
    graph = Graph(shape)
    model = graph.model(graph.node("Exp", "x"))
    imported = import_model(model)
    mod = spread_over_threads(lower_and_fuse(imported.mod, LLVM), LLVM)
    (text,) = (str(func) for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    assert f"T.parallel(T.int64({parts}))" in text
    x = np.random.default_rng(3).standard_normal(shape).astype("float32")
    np.testing.assert_allclose(build(imported)(x), np.exp(x.astype("float64")), rtol=1e-6)


@pytest.mark.parametrize("columns", [7, 128, 1000], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1], ids="axis {}".format)
def test_softmax(axis: int, columns: int) -> None:
    """Shares are rounded as quotients are, far below the largest, too; rows with infinity or NaN are NaN."""
    graph = Graph((5, 6, columns))
    network = build(graph.model(graph.node("Softmax", "x", axis=axis)))
    x = 20 * np.random.default_rng(3).standard_normal((5, 6, columns)).astype("float32")
    powers = np.exp((x - x.max(axis, keepdims=True)).astype("float64"))
    np.testing.assert_allclose(network(x), powers / powers.sum(axis, keepdims=True), rtol=1e-6, atol=1e-37)
    np.testing.assert_array_equal(network(np.full_like(x, 3)), np.float32(1 / x.shape[axis]))
    for value in (np.inf, np.nan):
        x[2, 3, 4] = value
        of_row = tuple(slice(None) if index == axis % 3 else number for index, number in enumerate((2, 3, 4)))
        y = network(x)
        assert np.isnan(y[of_row]).any()
        y[of_row] = 0
        assert np.isfinite(y).all()


def test_what_has_no_loops_of_blocks_stays_as_it_is() -> None:
    """TVM's scatter is written by hand, and an input may decide where a slice begins."""
    graph = Graph((1, 4, 3, 5))
    graph.inputs.append(onnx.helper.make_tensor_value_info("start", onnx.TensorProto.INT64, (1,)))
    indices, updates = graph.constant(np.full((1, 1, 1, 2), 2), "int64"), graph.constant([[[[7.0, 8.0]]]])
    scattered = graph.node("ScatterElements", graph.node("Relu", "x"), indices, updates, axis=1)
    ends = (graph.constant([9], "int64"), graph.constant([3], "int64"))
    model = graph.model(graph.node("Neg", graph.node("Slice", scattered, "start", *ends)))
    x, start = np.random.default_rng(3).standard_normal((1, 4, 3, 5)).astype("float32"), np.array([2])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "start": start})
    np.testing.assert_allclose(build(model)(x, start), expected, rtol=1e-6)
