"""Lowerings of the largest and the smallest of some numbers, and of their indices, as integers in the same order.

TVM's own leave NaN out, and begin with the lowest finite number, which -inf is below, and with the index -1. Here the
largest and the smallest of numbers with NaN among them is NaN, as in torch and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx, topi

Reduction = Callable[[te.Tensor, Sequence[int] | int | None, bool], te.Tensor]
"""A reduction of a tensor along axes, which it may keep with one element each."""


def _with_other_order(bits: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return an integer with the order of the float with these bits, or the bits from that integer.

    The bits of a negative float without their sign rise as it falls, so they are turned.
    """
    dtype = bits.ty.dtype
    return bits ^ ((bits >> tirx.const(dtype.bits - 1, dtype)) & tirx.max_value(dtype))


def _as_integers(x: te.Tensor, nan: int, tells_zeros_apart: bool) -> te.Tensor:
    """Return numbers as integers in the same order, with NaN at the one end (1) or the other (-1).

    Half precision goes by way of float32. -0 is below 0, or the same.
    """
    wide = "float64" if str(x.dtype) == "float64" else "float32"
    dtype = wide.replace("float", "int")
    end = tirx.max_value(dtype) if nan > 0 else tirx.min_value(dtype)
    infinity = tirx.const(int(np.array(np.inf, wide).view(dtype)), dtype)

    def integer(*at: tirx.Var) -> tirx.PrimExpr:
        bits = tirx.reinterpret(dtype, x(*at).astype(wide))
        magnitude, place = bits & tirx.max_value(dtype), _with_other_order(bits)
        if not tells_zeros_apart:
            place = tirx.Select(magnitude == 0, tirx.const(0, dtype), place)
        # LLVM has vectors of this comparison, and none of TVM's isnan.
        return tirx.Select(magnitude > infinity, end, place)

    return te.compute(x.shape, integer, name="places")


def _as_numbers(places: te.Tensor, dtype: str) -> te.Tensor:
    """Return the numbers of which `_as_integers` has made integers; its ends are bits of NaN."""
    wide = str(places.dtype).replace("int", "float")
    return te.compute(
        places.shape,
        lambda *at: tirx.reinterpret(wide, _with_other_order(places(*at))).astype(dtype),
        name="numbers",
    )


def _extreme(reduction: Reduction, nan: int) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """Return the lowering of an operator that returns numbers."""

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), axes, kept = call.args, call.attrs.axis, bool(call.attrs.keepdims)
        axes = None if axes is None else list(map(int, axes))
        if "float" not in str(x.ty.dtype):
            return builder.call_te(reduction, x, axes, kept)
        places = builder.emit_te(_as_integers, x, nan, True, primfunc_name_hint="integers")
        place = builder.emit_te(reduction, places, axes, kept)
        return builder.call_te(_as_numbers, place, str(x.ty.dtype), primfunc_name_hint="numbers")

    return lowered


def _index(reduction: Reduction, nan: int) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """Return the lowering of an operator that returns indices, each of the first of equal numbers."""

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), axis, kept = call.args, call.attrs.axis, bool(call.attrs.keepdims)
        axis = None if axis is None else int(axis)
        if "float" not in str(x.ty.dtype):
            return builder.call_te(reduction, x, axis, kept)
        return builder.call_te(
            reduction, builder.emit_te(_as_integers, x, nan, False, primfunc_name_hint="integers"), axis, kept
        )

    return lowered


LOWERINGS = {
    "relax.max": _extreme(topi.max, 1),
    "relax.min": _extreme(topi.min, -1),
    "relax.argmax": _index(topi.argmax, 1),
    "relax.argmin": _index(topi.argmin, -1),
}
"""The functions that lower the operators to TE, by name, for `LegalizeOps`."""
