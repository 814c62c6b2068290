"""Long sums on a CPU: their error beside float64, with static and open sizes, and for any number of threads.

Each bound is one that a sum exceeds which takes one number after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.shared.network_graph import Graph, normal, relax_module
from tvmconv.checking.verify import compare, run_onnxruntime
from tvmconv.network import Network, build, import_model
from tvmconv.network.graph.layers import TensorSpec
from tvmconv.network.model import Model
from tvmconv.targets.threads import MODE_BIG, get_num_threads

Array = np.ndarray[Any, Any]
LONG = 100_003
"""A length that no block, vector or accumulator divides."""

BOUNDS = {"float32": 1e-6, "float64": 1e-13}
"""The largest error by the dtype of a sum, as a share of the largest result."""

LARGE = {"float32": 2.0**16, "float64": 2.0**45}
"""A number by dtype to which numbers below 0.003 can be added one by one without changing it."""


def one_large(shape: tuple[int, ...], over: tuple[int, ...], dtype: str) -> Array:
    """Return numbers below 0.003, of which the first of each sum is large."""
    x = 0.003 * np.random.default_rng(3).random(shape)
    x[tuple(0 if axis in over else slice(None) for axis in range(len(shape)))] = LARGE[dtype]
    return x


def roots(shape: tuple[int, ...], over: tuple[int, ...], dtype: str) -> Array:
    return np.sqrt(one_large(shape, over, dtype))


def in_windows(shape: tuple[int, ...], over: tuple[int, ...], dtype: str) -> Array:
    """Return the numbers for each window of 151x151."""
    x = one_large(shape, over, dtype)
    x[:, :, ::151, ::151] = LARGE[dtype]
    return x


def one_ahead(shape: tuple[int, ...], over: tuple[int, ...], dtype: str) -> Array:
    """Return logits whose first class is far ahead: all others together have a share of 0.4%."""
    return np.where(one_large(shape, over, dtype) > 1, 17, 0.1 * np.random.default_rng(5).standard_normal(shape))


def shifted(shape: tuple[int, ...], over: tuple[int, ...], dtype: str) -> Array:
    """Return numbers whose mean is large beside their deviation."""
    return np.random.default_rng(3).random(shape) + 5


def softmax(x: Array, over: tuple[int, ...]) -> Array:
    powers = np.exp(x - x.max(over, keepdims=True))
    return np.asarray(powers / powers.sum(over, keepdims=True))


def normalized(x: Array, over: tuple[int, ...]) -> Array:
    centered = x - x.mean(over, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(over, keepdims=True) + 1e-5))


def divided_by_root(x: Array, over: tuple[int, ...]) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(over, keepdims=True) + 1e-5))


def total(x: Array, over: tuple[int, ...]) -> Array:
    return np.asarray(x.sum(over, keepdims=True))


def mean(x: Array, over: tuple[int, ...]) -> Array:
    return np.asarray(x.mean(over, keepdims=True))


@dataclass(frozen=True)
class Case:
    """An operator that reduces long rows or columns, with its definition in float64."""

    operator: str
    shape: tuple[int, ...]
    over: tuple[int, ...]
    """The axes of a sum."""
    expected: Callable[[Array, tuple[int, ...]], Array]
    attributes: dict[str, Any] = field(default_factory=dict)
    parameters: tuple[tuple[float, int], ...] = ()
    """The value and the length of the vectors that are the other operands."""
    numbers: Callable[[tuple[int, ...], tuple[int, ...], str], Array] = one_large
    opset: int = 18
    opens: bool = True
    """False if the operator needs some of the sizes."""
    dtype: str = "float32"

    @property
    def id(self) -> str:
        over = "-".join(map(str, self.over))
        return f"{self.operator}-{'x'.join(map(str, self.shape))}-over-{over}-{self.dtype}"

    def x(self) -> Array:
        return self.numbers(self.shape, self.over, self.dtype).astype(self.dtype)

    def model(self, is_open: bool) -> onnx.ModelProto:
        graph = Graph(
            [f"n{axis}" for axis in range(len(self.shape))] if is_open else self.shape, self.dtype, self.opset
        )
        others = [graph.constant(np.full(length, value)) for value, length in self.parameters]
        if self.operator.startswith("Reduce"):
            others.append(graph.constant(self.over, "int64"))
        return graph.model(graph.node(self.operator, "x", *others, **self.attributes))


ROW, COLUMNS, PLANES = (2, LONG), (LONG, 19), (2, 3, 317, 331)

CASES = (
    Case("Softmax", ROW, (1,), softmax, {"axis": 1}, numbers=one_ahead),
    Case("Softmax", COLUMNS, (0,), softmax, {"axis": 0}, numbers=one_ahead),
    Case("Softmax", (2, 20_011, 3, 5), (1,), softmax, {"axis": 1}, numbers=one_ahead),
    Case("LogSoftmax", ROW, (1,), lambda x, over: np.log(softmax(x, over)), {"axis": 1}, numbers=one_ahead),
    Case("ReduceSum", ROW, (1,), total),
    Case("ReduceSum", COLUMNS, (0,), total),
    Case("ReduceSum", (LONG,), (0,), total),
    Case("ReduceSum", (301, 3, 333), (0, 2), total),
    Case("ReduceSum", (301, 7, 333, 5), (0, 2), total),
    Case("ReduceSum", ROW, (1,), total, dtype="float64"),
    Case("ReduceSum", COLUMNS, (0,), total, dtype="float64"),
    Case("ReduceSum", (3, 20_011, 5), (1,), total),
    Case("ReduceMean", PLANES, (2, 3), mean),
    Case("ReduceMean", PLANES, (0, 2, 3), mean),
    Case("ReduceL1", ROW, (1,), lambda x, over: total(abs(x), over)),
    Case("ReduceL2", ROW, (1,), lambda x, over: np.sqrt(total(x * x, over)), numbers=roots),
    Case("ReduceL2", COLUMNS, (0,), lambda x, over: np.sqrt(total(x * x, over)), numbers=roots),
    Case("ReduceSumSquare", ROW, (1,), lambda x, over: total(x * x, over), numbers=roots),
    Case("ReduceLogSum", ROW, (1,), lambda x, over: np.log(total(x, over))),
    Case("ReduceLogSumExp", ROW, (1,), lambda x, over: np.log(total(np.exp(x), over)), numbers=one_ahead),
    Case("LayerNormalization", ROW, (1,), normalized, parameters=((1, LONG), (0, LONG)), numbers=shifted, opens=False),
    Case("LayerNormalization", (2, 20_011, 7), (1, 2), normalized, {"axis": 1}, ((1, 1),), shifted, opens=False),
    Case("InstanceNormalization", PLANES, (2, 3), normalized, {}, ((1, 3), (0, 3)), shifted, opens=False),
    Case(
        "GroupNormalization",
        (2, 6, 97, 331),
        (1, 2, 3),
        lambda x, over: normalized(x.reshape(2, 2, -1), (2,)).reshape(x.shape),
        {"num_groups": 2},
        ((1, 6), (0, 6)),
        shifted,
        opset=21,
        opens=False,
    ),
    Case("RMSNormalization", ROW, (1,), divided_by_root, {}, ((1, LONG),), roots, opset=23, opens=False),
    Case("GlobalAveragePool", PLANES, (2, 3), mean),
    Case(
        "AveragePool",
        (1, 2, 453, 453),
        (2, 3),
        lambda x, over: x.reshape(1, 2, 3, 151, 3, 151).mean((3, 5)),
        {"kernel_shape": [151, 151], "strides": [151, 151]},
        numbers=in_windows,
        opens=False,
    ),
    Case(
        "AveragePool",
        (1, 2, 301, 305),
        (2, 3),
        lambda x, over: total(x, over) / (305 * 305),
        {"kernel_shape": [305, 305], "pads": [2, 0, 2, 0], "count_include_pad": 1},
        opens=False,
    ),
)
OPEN = tuple(case for case in CASES if case.opens)


def error(y: Array, expected: Array) -> float:
    """Return the largest error as a share of the largest number that is expected."""
    assert y.shape == expected.shape
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def check(case: Case, is_open: bool) -> None:
    x = case.x()
    y = build(import_model(case.model(is_open)))(x)
    assert y.dtype == case.dtype
    exact = x.astype("longdouble" if case.dtype == "float64" else "float64")
    assert error(y, case.expected(exact, case.over)) < BOUNDS[case.dtype]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_long_sums(case: Case) -> None:
    check(case, is_open=False)


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.id)
def test_long_sums_of_open_sizes(case: Case) -> None:
    check(case, is_open=True)


@pytest.mark.parametrize("ends", [None, 2], ids=["whole", "in-part"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("shape", "over"), [((3, 4, 5), (0,)), ((3, 2, 17, 5), (0,)), ((4, 5, 4, 5), (1,)), ((2, 3, 5, 7), (0, 1))], ids=str
)
def test_sums_of_sums(shape: tuple[int, ...], over: tuple[int, ...], keepdims: int, ends: int | None) -> None:
    """A variance and the means that it needs are one function: vectors run on into the next row of an array in it."""

    def function(x: relax.Var) -> relax.Expr:
        y = relax.op.variance(x, list(over), bool(keepdims))
        return y if ends is None else relax.op.strided_slice(y, [-1], [0], [ends])

    mod = relax_module(function, relax.Var("x", relax.TensorType(shape, "float32")))
    given = np.random.default_rng(5).standard_normal(shape, "float32")
    expected = given.astype("float64").var(over, keepdims=bool(keepdims))[..., :ends]
    spec = TensorSpec("y", expected.shape, "float32")
    network = build(Model(mod, (TensorSpec("x", shape, "float32"),), (spec,)))
    assert error(network(given), expected) < BOUNDS["float32"]


@pytest.mark.parametrize("dtype", BOUNDS)
def test_sums_term_by_term_are_worse(dtype: str) -> None:
    """The bound tells a blocked sum from one that takes a number after the other."""
    x = one_large((LONG,), (0,), dtype).astype(dtype)
    one_by_one = np.add.accumulate(x, dtype=dtype)[-1:]
    assert error(one_by_one, x.astype("longdouble").sum(keepdims=True)) > 10 * BOUNDS[dtype]


COUNTS = (1, 3, 5, 16, 17, 63, 65, 1089)
"""Lengths with which something is left over of blocks, accumulators or vectors, or not."""

AXES = ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2))


@cache
def reducer(count: int | str) -> Network:
    """Return sums and the largest numbers over axes of (3, count, 5) numbers, or of open sizes for a name."""
    graph = Graph(("a", count, "c") if isinstance(count, str) else (3, count, 5), opset=18)
    nodes = [
        graph.node(name, "x", graph.constant(axes, "int64")) for axes in AXES for name in ("ReduceSum", "ReduceMax")
    ]
    return build(import_model(graph.model(*nodes)))


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("count", COUNTS)
def test_lengths(count: int, is_open: bool) -> None:
    """Whatever is left over is added once, in rows and in columns."""
    x = np.random.default_rng(3).integers(-9, 9, (3, count, 5)).astype("float32")
    expected = [reduce(x, axis=axes, keepdims=True) for axes in AXES for reduce in (np.sum, np.max)]
    for y, exact in zip(reducer("b" if is_open else count)(x), expected, strict=True):
        np.testing.assert_array_equal(y, exact)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_running_sums(dtype: str) -> None:
    """The last of many numbers has the error of a rounding."""
    x = np.random.default_rng(3).random((2, LONG)).astype("float32").astype(dtype)
    graph = Graph(x.shape, dtype)
    y = build(import_model(graph.model(graph.node("CumSum", "x", graph.constant(1, "int64")))))(x)
    assert y.dtype == dtype
    exact = np.cumsum(x.astype("float64"), axis=1)
    np.testing.assert_array_equal(y, exact.astype(dtype))


@pytest.mark.parametrize("axes", [(1, 2), (1,), (2,), (0, 1)], ids=str)
def test_masks_stay_in_their_rows(axes: tuple[int, ...]) -> None:
    """What is left out by its row and column is left out of sums over both, too."""
    graph = Graph((2, 37, 41), opset=18)
    lower = graph.node("Mul", graph.node("Trilu", "x", upper=0), graph.constant(2))
    padded = graph.node("Pad", lower, graph.constant([0, 1, 2, 0, 3, 1], "int64"))
    nodes = [graph.node("ReduceSum", each, graph.constant(axes, "int64"), keepdims=1) for each in (lower, padded)]
    x = np.random.default_rng(3).integers(-9, 9, (2, 37, 41)).astype("float32")
    expected = 2 * np.tril(x)
    wide = np.pad(expected, [(0, 0), (1, 3), (2, 1)])
    for y, exact in zip(build(import_model(graph.model(*nodes)))(x), (expected, wide), strict=True):
        np.testing.assert_array_equal(y, exact.sum(axes, keepdims=True))


def test_threads_change_nothing() -> None:
    """Results are the same to the bit for any number of threads."""
    graph = Graph((3, 200_003), opset=18)
    sums = [graph.node("ReduceSum", "x", graph.constant(axes, "int64")) for axes in ([0], [1])]
    network = build(import_model(graph.model(*sums, graph.node("Softmax", "x"))))
    x = np.random.default_rng(3).random((3, 200_003)).astype("float32")
    usual, configure = get_num_threads(), tvm.get_global_func("runtime.config_threadpool")
    results = [network(x)]
    try:
        configure(MODE_BIG, 1)
        results.append(network(x))
    finally:
        configure(MODE_BIG, usual)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_recognizer_of_characters(tmp_path: Path) -> None:
    """A recognizer with a softmax over thousands of characters, one of them certain, agrees with ONNX Runtime."""
    graph = Graph((1, 3, 16, 64))
    y = graph.node("Relu", graph.conv("x", (16, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    y = graph.node("MaxPool", graph.conv(y, (32, 16, 3, 3), pads=[1, 1, 1, 1]), kernel_shape=[8, 1])
    y = graph.node("Transpose", graph.node("Squeeze", y, graph.constant([2], "int64")), perm=[0, 2, 1])
    bias = np.zeros(6625)
    bias[0] = 17
    y = graph.node("Add", graph.node("MatMul", y, graph.random(32, 6625, scale=0.02)), graph.constant(bias))
    model = graph.model(graph.node("Softmax", y, axis=2))
    path = tmp_path / "recognizer.onnx"
    onnx.save(model, path)
    x = normal(1, 3, 16, 64)
    name = model.graph.output[0].name
    (found,) = compare({name: build(import_model(model))(x)}, run_onnxruntime(path, {"x": x}, [name]))
    assert found.agrees, found
