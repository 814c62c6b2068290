"""Kernels of attention with their operands."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tvm

from tvmconv import lowering
from tvmconv.dispatch import select
from tvmconv.problem import FusedProblem
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.problem.fused.attention import Attention
from tvmconv.problem.layout import StridedRows
from tvmconv.schedules.cuda.attention.tiles import Config


class Kernel(NamedTuple):
    """A kernel of attention on (matrices, rows, columns), each of which is a tensor by itself.

    The bias is of all matrices.
    """

    matrices: int
    queries: int
    keys: int
    depth: int = 16
    width: int = 16
    dtype: str = "float16"
    out_dtype: str = "float16"
    scale: float = 0.25
    fragments: int = 1
    stages: int = 2
    size: float = 1
    """The size of queries."""
    bias: bool = False
    """True if numbers are added, which are -inf for the first query, and for all keys of the second tile."""
    safe: bool = False
    warps: int = 4
    splits: int = 1
    tile_keys: int = 64
    parts: int = 1
    """The TF32 numbers that a float32 factor is taken for."""

    @property
    def config(self) -> Config:
        return Config(self.fragments, self.stages, self.tile_keys, self.warps, self.splits)

    @property
    def problem(self) -> FusedProblem:
        return FusedProblem(self.attention, precision="float32" if self.parts == 2 else "tf32")

    def function(self, target: tvm.target.Target) -> tvm.tirx.PrimFunc:
        """Return the function of the kernel, named "attention"."""
        return lowering.lower(self.problem, select(self.problem, target, self.config), target, "attention")

    @property
    def attention(self) -> Attention:
        def rows_alone(rows: int, columns: int) -> StridedRows:
            return StridedRows.whole_tensor(self.matrices, rows, columns)

        q, k = rows_alone(self.queries, self.depth), rows_alone(self.keys, self.depth)
        bias = StridedRows(self.queries * self.keys, 0, ((self.matrices, 0),), self.keys, self.queries)
        return Attention(
            *(self.matrices, self.depth, self.width, self.dtype, self.out_dtype, self.scale, q, k),
            *(rows_alone(self.keys, self.width), rows_alone(self.queries, self.width)),
            (bias,) * self.bias,
            self.safe,
        )

    def operands(self) -> dict[str, np.ndarray]:
        """Return the operands by name, the factors rounded to their type."""
        generator = np.random.default_rng(self.keys)
        shapes = {"q": (self.queries, self.depth), "k": (self.keys, self.depth), "v": (self.keys, self.width)}
        factors = {name: generator.standard_normal((self.matrices, *shape)) for name, shape in shapes.items()}
        factors["q"] *= self.size
        found = {name: factor.astype(STORAGE_TYPES[self.dtype].numpy) for name, factor in factors.items()}
        if self.bias:
            numbers = generator.standard_normal((self.queries, self.keys)).astype("float32")
            numbers[0], numbers[:, 64:128] = -np.inf, -np.inf
            numbers[1, :64] = -np.inf
            found["bias_0"] = numbers
        return found

    def expected(self) -> np.ndarray:
        """Return the result in float64."""
        operands = {name: each.astype("float64") for name, each in self.operands().items()}
        scores = operands["q"] @ operands["k"].swapaxes(1, 2) * self.scale + operands.get("bias_0", 0)
        with np.errstate(invalid="ignore"):
            powers = np.exp(scores - scores.max(-1, keepdims=True))
        result = powers @ operands["v"] / powers.sum(-1, keepdims=True)
        return np.where(np.isnan(result), 0, result) if self.safe else result

    def in_chains(self) -> np.ndarray:
        """Return the result of float32 operands by chains of multiply-adds, which float64 has before it is rounded."""
        operands = self.operands()
        scores, sums, total = (np.float32(0),) * 3
        for term in range(self.depth):
            scores = _added(scores, operands["q"][:, :, None, term], operands["k"][:, None, :, term])
        scores = scores * np.float32(self.scale)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        for key in range(self.keys):
            sums = _added(sums, powers[:, :, key, None], operands["v"][:, None, key])
            total = total + powers[:, :, key, None]
        return np.asarray(sums / total)

    def check(self, found: np.ndarray) -> None:
        expected = self.expected()
        unit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-3 if self.parts == 1 else 3e-6}[self.dtype]
        bound = unit * np.nanmax(np.abs(expected))
        np.testing.assert_allclose(found.reshape(expected.shape).astype("float64"), expected, rtol=0, atol=bound)


def _added(sums: np.ndarray | np.float32, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(sums + first.astype("float64") * second, "float32")


KERNELS = {
    "vit": Kernel(2, 70, 77, 64, 64, stages=3),
    "one-tile": Kernel(3, 16, 9),
    "whole-tiles": Kernel(1, 64, 128, 32, 32, "bfloat16", "bfloat16"),
    "wide": Kernel(1, 130, 77, 64, 64, fragments=2),
    "half-fragments": Kernel(2, 5, 77, 40, 24, stages=3),
    "large-scores": Kernel(2, 21, 77, scale=5e-5, size=10_000),
    "many-tiles": Kernel(1, 21, 333, stages=3),
    "bias": Kernel(2, 21, 140, bias=True),
    "depth-128": Kernel(1, 21, 77, 128, 128, "bfloat16", "float32"),
    "safe": Kernel(1, 21, 200, bias=True, safe=True),
    "splits": Kernel(2, 21, 197, 64, 64, stages=1, warps=1, splits=4),
    "splits-turns": Kernel(1, 40, 333, safe=True, bias=True, warps=2, splits=2),
    "splits-without-keys": Kernel(1, 21, 300, stages=2, warps=1, splits=4),
    "below-zero": Kernel(1, 21, 77, scale=-0.5, fragments=2),
    **{
        f"float32-{name}": case._replace(dtype="float32", out_dtype="float32", parts=2)
        for name, case in {
            "vit": Kernel(2, 70, 77, 64, 64),
            "one-tile": Kernel(3, 16, 9),
            "wide": Kernel(1, 130, 77, 32, 32, fragments=2),
            "half-fragments": Kernel(2, 5, 77, 20, 12, stages=3),
            "large-scores": Kernel(2, 21, 77, scale=5e-5, size=10_000),
            "bias": Kernel(2, 21, 140, bias=True),
            "depth-128": Kernel(1, 21, 77, 128, 128, tile_keys=32),
            "safe": Kernel(1, 21, 200, bias=True, safe=True),
            "splits": Kernel(2, 21, 197, 64, 64, stages=1, warps=1, splits=4),
        }.items()
    },
    "tf32": Kernel(2, 70, 77, 64, 64, "float32", "float32"),
    "tf32-wide": Kernel(1, 40, 333, 32, 32, "float32", "float32", fragments=2),
}
"""Kernels of attention, by what is particular about them."""
