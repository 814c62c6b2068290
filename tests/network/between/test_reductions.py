"""Pooling and means on a CPU: those that use vectors, and the numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx.reference import ReferenceEvaluator
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tests.shared.network_graph import Graph
from tvmconv.network import build, import_model
from tvmconv.network.between.cpu.spreading import lower_and_fuse, spread_over_threads
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.targets import resolve_target

LOWEST = np.finfo("float32").min


@dataclass(frozen=True)
class Case:
    """An operator that reduces, with its target and the expected vectors."""

    id: str
    operator: str
    x_shape: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    lanes: int | None = 16
    """The lanes of the vectors that are stored, or that a plane is added up in; None where there are none."""

    def model(self, dtype: str = "float32") -> onnx.ModelProto:
        graph = Graph(self.x_shape, dtype)
        return graph.model(graph.node(self.operator, "x", **self.attributes))


def window(kernel: int, stride: int, padding: int = 0, **attributes: Any) -> dict[str, Any]:
    return {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4, **attributes}


CASES = (
    Case("3x3-stride-2", "MaxPool", (1, 3, 33, 35), window(3, 2)),
    Case("3x3-stride-2-padding", "MaxPool", (2, 3, 32, 34), window(3, 2, 1)),
    Case("2x2-stride-2", "MaxPool", (1, 3, 32, 32), window(2, 2)),
    Case("fewer-outputs-than-lanes", "MaxPool", (1, 3, 27, 27), window(3, 2), lanes=8),
    Case("as-many-outputs-as-lanes", "MaxPool", (1, 3, 9, 9), window(3, 2), lanes=4),
    Case("too-few-outputs", "MaxPool", (1, 3, 7, 7), window(3, 2), lanes=None),
    Case("one-column", "MaxPool", (1, 3, 9, 3), window(2, 3), lanes=None),
    Case("rows-shorter-than-vectors", "MaxPool", (1, 3, 9, 15), window(3, 4, 1), lanes=None),
    Case("stride-1", "MaxPool", (1, 3, 17, 19), window(3, 1, 1)),
    Case("stride-beyond-the-window", "MaxPool", (1, 3, 70, 70), window(2, 3)),
    Case("wide-window", "MaxPool", (1, 3, 40, 43), window(6, 2, 2)),
    Case("ceil-mode", "MaxPool", (1, 3, 34, 36), window(3, 2, ceil_mode=1)),
    Case("dilation", "MaxPool", (1, 3, 40, 41), window(3, 2, 2, dilations=[2, 2])),
    Case(
        "not-square",
        "MaxPool",
        (1, 3, 21, 40),
        {"kernel_shape": [2, 5], "strides": [3, 1], "pads": [1, 0, 0, 3]},
    ),
    Case("too-much-code", "MaxPool", (1, 1, 12, 1000), window(3, 2), lanes=None),
    Case("average", "AveragePool", (1, 3, 33, 35), window(3, 2)),
    Case("average-without-padding", "AveragePool", (1, 3, 33, 35), window(3, 2, 1)),
    Case("average-with-padding", "AveragePool", (1, 3, 33, 35), window(3, 2, 1, count_include_pad=1)),
    Case("average-ceil-mode", "AveragePool", (1, 3, 34, 36), window(3, 2, ceil_mode=1)),
    Case("mean-of-whole-vectors", "GlobalAveragePool", (2, 5, 8, 8)),
    Case("mean-with-a-rest", "GlobalAveragePool", (2, 5, 7, 7)),
    Case("mean-of-small-planes", "GlobalAveragePool", (2, 5, 3, 3), lanes=8),
    Case("mean-of-tiny-planes", "GlobalAveragePool", (2, 5, 1, 3), lanes=None),
    Case("greatest-of-planes", "GlobalMaxPool", (2, 5, 13, 13)),
    Case("least-of-rows", "ReduceMin", (2, 5, 6, 21), {"axes": [3]}),
    Case("sum-of-everything-else", "ReduceSum", (2, 5, 6, 21)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_vectors(case: Case) -> None:
    target = resolve_target({"kind": "llvm", "mcpu": "skylake-avx512"})
    mod = spread_over_threads(lower_and_fuse(import_model(case.model()).mod, target), target)
    lanes: set[int] = set()

    def add(access: tirx.BufferStore | TensorLoad) -> None:
        lanes.update(int(index.lanes) for index in access.indices if isinstance(index, tirx.Ramp))

    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, [((tirx.BufferStore, TensorLoad), add)])
            assert "pad_temp" not in str(func) or case.lanes is None
    assert min(lanes, default=None) == case.lanes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numbers(case: Case) -> None:
    x = np.random.default_rng(3).standard_normal(case.x_shape).astype("float32")
    (expected,) = ReferenceEvaluator(case.model()).run(None, {"x": x})
    y = build(import_model(case.model()))(x)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [each for each in CASES if each.id in ("3x3-stride-2-padding", "average-with-padding", "mean-with-a-rest")],
    ids=lambda case: case.id,
)
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types(case: Case, dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal(case.x_shape).astype(dtype)
    (expected,) = ReferenceEvaluator(case.model()).run(None, {"x": x.astype("float32")})
    y = build(import_model(case.model(dtype)))(x)
    assert y.dtype == dtype
    unit = STORAGE_TYPES[dtype].unit
    np.testing.assert_allclose(y.astype("float64"), expected, rtol=4 * unit, atol=4 * unit)


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.id)
def test_infinities_and_nan_stay_in_their_windows(case: Case) -> None:
    """Padding is less than any finite number; the result for a NaN is not defined."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(case.x_shape).astype("float32")
    x[0, 0], x[0, 1, :2, :2], x[0, 2, -1] = -np.inf, -np.inf, np.inf
    network = build(import_model(case.model()))
    (expected,) = ReferenceEvaluator(case.model()).run(None, {"x": x})
    np.testing.assert_array_equal(np.maximum(network(x), LOWEST), np.maximum(expected, LOWEST))

    holes = rng.random(case.x_shape) < 0.02
    (holed,) = ReferenceEvaluator(case.model()).run(None, {"x": holes.astype("float32")})
    touched = holed > 0
    (expected,) = ReferenceEvaluator(case.model()).run(None, {"x": np.where(holes, 0, x)})
    y = network(np.where(holes, np.float32("nan"), x))
    assert 0 < np.count_nonzero(touched) < touched.size
    np.testing.assert_array_equal(np.maximum(y, LOWEST)[~touched], np.maximum(expected, LOWEST)[~touched])
