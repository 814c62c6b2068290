"""Lowerings of the largest and the smallest of some numbers, and of their indices, where all numbers are infinite, too.

TVM's own begin with the lowest finite number, which -inf is below, and with the index -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tvm import relax, te, tirx, topi

LARGEST = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda dtype: tirx.const(-inf, dtype), name="max")
SMALLEST = te.comm_reducer(lambda a, b: tirx.min(a, b), lambda dtype: tirx.const(inf, dtype), name="min")


def _extreme(reducer: Any, otherwise: Callable[..., te.Tensor]) -> Callable[..., relax.Expr]:
    """Return the lowering of a reduction to one of these in float32 or float64, and of others to TVM's own."""

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), axes, kept = call.args, call.attrs.axis, bool(call.attrs.keepdims)
        if str(x.ty.dtype) not in ("float32", "float64"):
            return builder.call_te(otherwise, x, axes, kept)
        return builder.call_te(reduced, x, None if axes is None else list(map(int, axes)), kept)

    def reduced(x: te.Tensor, axes: Sequence[int] | None, kept: bool) -> te.Tensor:
        along = {
            axis % len(x.shape): te.reduce_axis((0, x.shape[axis]), name=f"k{axis}")
            for axis in (range(len(x.shape)) if axes is None else axes)
        }
        shape = [1 if axis in along else size for axis, size in enumerate(x.shape) if kept or axis not in along]

        def extreme(*at: tirx.Var) -> tirx.PrimExpr:
            outer = iter([each for axis, each in enumerate(at) if axis not in along] if kept else at)
            place = [along[axis] if axis in along else next(outer) for axis in range(len(x.shape))]
            return reducer(x(*place), axis=list(along.values()))

        return te.compute(shape, extreme, name="extreme")

    return lowered


def _index(of_any: Callable[..., te.Tensor]) -> Callable[..., relax.Expr]:
    """Return the lowering of an operator that returns an index: 0 where TVM finds no number above its first one."""

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        return builder.call_te(found, call.args[0], axis, bool(call.attrs.keepdims))

    def found(x: te.Tensor, axis: int | None, kept: bool) -> te.Tensor:
        index = of_any(x, axis, kept)
        return topi.maximum(index, tirx.const(0, index.dtype))

    return lowered


LOWERINGS = {
    "relax.max": _extreme(LARGEST, topi.max),
    "relax.min": _extreme(SMALLEST, topi.min),
    "relax.argmax": _index(topi.argmax),
    "relax.argmin": _index(topi.argmin),
}
"""The functions that lower the operators to TE, by name, for `LegalizeOps`."""
