"""Concatenations between convolutions on a GPU: operators read their parts, and warps one part each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.emulated.network import SM_90, lowered, run
from tests.shared.network_graph import relax_module
from tvmconv import lowering
from tvmconv.network.graph.graph import blocks_of, calls
from tvmconv.network.passes.fusible import flatten_concatenations
from tvmconv.targets import cuda

GROWTH = 32


def network(shape: Sequence[int], layers: int, growth: int = GROWTH, axis: int = 3, dtype: str = "float16") -> Any:
    """Return a module with layers as DenseNet has them: each joins all before it with what it makes of them.

    Factors and a sigmoid stand for batch norm and its activation; some channels of a pooling, for the convolutions.
    """

    def function(joined: relax.Expr) -> relax.Expr:
        for layer in range(layers):
            y = op.sigmoid(op.multiply(joined, relax.const(factors(shape[axis] + layer * growth, axis, dtype))))
            y = op.nn.max_pool2d(y, 3, 1, 1, layout="NHWC" if axis == 3 else "NCHW")
            part = op.strided_slice(y, [axis], [layer], [layer + growth])
            joined = op.concat([joined, part], axis - 4 * (layer % 2))
        return op.multiply(joined, relax.const(2.0, dtype))

    return relax_module(function, relax.Var("x", relax.TensorType(list(shape), dtype)))


def factors(channels: int, axis: int, dtype: str) -> np.ndarray:
    return np.linspace(-1, 1, channels, dtype=dtype).reshape([-1 if each == axis else 1 for each in range(4)])


def reference(x: np.ndarray, layers: int, growth: int = GROWTH, axis: int = 3) -> np.ndarray:
    """Return what the network computes, in float64."""
    joined = x.astype("float64")
    spatial = (1, 2) if axis == 3 else (2, 3)
    for layer in range(layers):
        y = 1 / (1 + np.exp(-joined * factors(joined.shape[axis], axis, str(x.dtype))))
        padded = np.pad(y, [(1, 1) if each in spatial else (0, 0) for each in range(4)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), spatial)
        part = windows.max((-2, -1)).take(range(layer, layer + growth), axis)
        joined = np.concatenate([joined, part], axis)
    return joined * 2


def concatenations(mod: tvm.IRModule) -> list[int]:
    """Return the numbers of parts of the concatenations in a module."""
    values = [value for block in blocks_of(mod) for value in block.values.values()]
    return [len(value.args[0].fields) for value in values if calls(value, "concat")]


@pytest.mark.parametrize(
    ("shape", "growth", "axis", "dtype"),
    [
        ((2, 4, 4, 64), 32, 3, "float16"),
        ((1, 7, 7, 64), 32, 3, "float16"),
        ((2, 3, 4, 24), 24, 3, "float32"),
        ((2, 12, 4, 4), 5, 1, "float16"),
    ],
    ids=str,
)
def test_numbers(shape: tuple[int, ...], growth: int, axis: int, dtype: str) -> None:
    """What is joined is nowhere: each operator is one kernel, which reads the parts."""
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    mod = flatten_concatenations(network(shape, 3, growth, axis, dtype))
    assert concatenations(mod) == [2, 3, 4]
    found = run(lowered(mod), [x])
    joins = [name for name in found.kernels if "concatenate" in name]
    assert len(joins) == 3
    assert all("multiply" in name for name in joins)
    expected = reference(x, 3, growth, axis)
    np.testing.assert_allclose(found.outputs[0], expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_parts_that_are_no_vectors_stay_joined() -> None:
    assert concatenations(flatten_concatenations(network((1, 4, 4, 64), 3, growth=12))) == [2, 2, 2]


def test_no_kernel_has_too_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmconv.network.passes.fusible.MAX_PARTS", 3)
    assert concatenations(flatten_concatenations(network((1, 4, 4, 64), 5))) == [2, 3, 2, 3, 2]


def test_what_something_else_reads_stays_joined() -> None:
    """A mean of what is joined needs it in memory, and the next concatenation reads it from there."""

    def function(x: relax.Var) -> list[relax.Expr]:
        joined = op.concat([x, op.nn.relu(x)], 3)
        return [op.mean(joined, [1, 2]), op.nn.relu(op.concat([joined, x], 3))]

    mod = relax_module(function, relax.Var("x", relax.TensorType([1, 4, 4, 16], "float16")))
    assert concatenations(flatten_concatenations(mod)) == [2, 2]


def test_each_warp_reads_one_part() -> None:
    """The tests that choose among eight parts are the same for all threads of a warp, and three are made of them."""
    parts = [relax.Var(f"x{i}", relax.TensorType([2, 8, 8, size], "float16")) for i, size in enumerate([64] + 7 * [32])]
    mod = relax_module(lambda *parts: op.nn.relu(op.concat(parts, 3)), *parts)
    (source,) = cuda.sources(lowering.build(lowered(mod), SM_90).mod)
    assert len(re.findall(r"= \*\(uint4\*\)\(x\d_ptr", source)) == len(parts)
    depth, deepest, tests = 0, 0, []
    for line in source[source.rindex("__global__") :].splitlines():
        depth += ("if (" in line) - (depth > 0 and line.strip().startswith("}") and "else" not in line)
        deepest = max(deepest, depth)
        tests += re.findall(r"if \((.*)\) \{", line)
    assert (len(tests), deepest) == (7, 3)
    for test in tests:
        formula = re.sub(r"\(\(int\)(\w+)\.x\)", r"\1", test).replace("/", "//")
        for block in range(2):
            found = [eval(formula, {"blockIdx": block, "threadIdx": thread}) for thread in range(256)]
            assert all(len({*found[warp : warp + 32]}) == 1 for warp in range(0, 256, 32))
    for kernel in cuda.kernel_resources(source, "sm_90"):
        assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
