"""Lowerings of comparisons of floats, and of reductions to the largest or smallest number or its index, with NaN.

NaN is unequal to every number, and not at least any number. TVM's reductions leave NaN out, begin with the lowest
finite number, which -inf is below, and with the index -1. Here NaN is the result where it is among the numbers, as in
torch and NumPy; integers in the same order are reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import Expr

from ...graph.constants import constant_value

Reduction = Callable[[te.Tensor, Sequence[int] | int | None, bool], te.Tensor]
"""A reduction of a tensor along axes (all for None), kept as axes of one element if the last operand is true."""

Lowering = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _ordered_bits(bits: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the bits of a float as a signed integer that is ordered as floats are; of that integer, the bits again.

    Of a negative float all bits but the sign are inverted: its bits, read as an integer, rise as the float falls.
    """
    dtype = bits.ty.dtype
    return bits ^ ((bits >> tirx.const(dtype.bits - 1, dtype)) & tirx.max_value(dtype))


def _integers(x: te.Tensor, of_nan: str, tells_zeros_apart: bool) -> te.Tensor:
    """Return an integer for each float, in the order of the floats; NaN has the "largest" or the "smallest" integer.

    The integers are as wide as the floats, of half precision as float32. -0 is below 0, or has the same integer.
    """
    wide = "float64" if str(x.dtype) == "float64" else "float32"
    dtype = wide.replace("float", "int")
    end = tirx.max_value(dtype) if of_nan == "largest" else tirx.min_value(dtype)
    infinity = tirx.const(int(np.array(np.inf, wide).view(dtype)), dtype)

    def integer(*at: tirx.Var) -> tirx.PrimExpr:
        bits = tirx.reinterpret(dtype, x(*at).astype(wide))
        magnitude, ordered = bits & tirx.max_value(dtype), _ordered_bits(bits)
        if not tells_zeros_apart:
            ordered = tirx.Select(magnitude == 0, tirx.const(0, dtype), ordered)
        # LLVM makes vectors of this comparison, but not of TVM's isnan.
        return tirx.Select(magnitude > infinity, end, ordered)

    return te.compute(x.shape, integer, name="integers")


def _floats(integers: te.Tensor, of_nan: str, dtype: str) -> te.Tensor:
    """Return the float of each integer of `_integers`; an infinity for the initial value of a reduction."""
    wide = str(integers.dtype).replace("int", "float")
    first, infinity = (
        (tirx.min_value(integers.dtype), -np.inf) if of_nan == "largest" else (tirx.max_value(integers.dtype), np.inf)
    )

    def number(*at: tirx.Var) -> tirx.PrimExpr:
        integer = integers(*at)
        number = tirx.reinterpret(wide, _ordered_bits(integer))  # the integers of NaN are bits of NaN again
        return tirx.Select(integer == first, tirx.const(infinity, wide), number).astype(dtype)

    return te.compute(integers.shape, number, name="floats")


def _extreme(reduction: Reduction, of_nan: str) -> Lowering:
    """Return the lowering of an operator that returns the largest or the smallest numbers."""

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), axes, kept = call.args, call.attrs.axis, bool(call.attrs.keepdims)
        axes = None if axes is None else list(map(int, axes))
        if "float" not in str(x.ty.dtype):
            return builder.call_te(reduction, x, axes, kept)
        integers = builder.emit_te(_integers, x, of_nan, True, primfunc_name_hint="integers")
        reduced = builder.emit_te(reduction, integers, axes, kept)
        return builder.call_te(_floats, reduced, of_nan, str(x.ty.dtype), primfunc_name_hint="floats")

    return lowered


def _index(reduction: Reduction, of_nan: str) -> Lowering:
    """Return the lowering of an operator that returns the index of the first of the largest or smallest numbers."""

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), axis, kept = call.args, call.attrs.axis, bool(call.attrs.keepdims)
        axis = None if axis is None else int(axis)
        if "float" not in str(x.ty.dtype):
            return builder.call_te(of_integers, x, axis, kept)
        integers = builder.emit_te(_integers, x, of_nan, False, primfunc_name_hint="integers")
        return builder.call_te(reduction, integers, axis, kept)

    def of_integers(x: te.Tensor, axis: int | None, kept: bool) -> te.Tensor:
        # TVM's index is -1 where all are the least integer of the dtype, with which it begins.
        index = reduction(x, axis, kept)
        return topi.maximum(index, tirx.const(0, index.dtype))

    return lowered


def _not(truth: Expr) -> Expr:
    """Return the negation of a comparison in a form that the simplifier does not turn into another comparison."""
    return tirx.Select(truth, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _logical_not(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,) = call.args
    if str(x.ty.dtype) != "bool":
        return builder.call_te(topi.logical_not, x)
    return builder.call_te(
        lambda x: te.compute(x.shape, lambda *at: _not(x(*at)), "negated"), x, primfunc_name_hint="logical_not"
    )


def _not_equal(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    operands = list(map(_operand, call.args))
    if "float" not in str(call.args[0].ty.dtype):
        return builder.call_te(topi.not_equal, *operands)
    return _logical_not(builder, relax.op.logical_not(builder.emit_te(topi.equal, *operands)))


def _operand(operand: relax.Expr) -> Any:
    """Return the number of a constant without axes; return any other operand as it is."""
    value = constant_value(operand)
    return operand if value is None or value.ndim else tirx.const(value.item(), str(operand.ty.dtype))


LOWERINGS: dict[str, Lowering] = {
    "relax.max": _extreme(topi.max, "largest"),
    "relax.min": _extreme(topi.min, "smallest"),
    "relax.argmax": _index(topi.argmax, "largest"),
    "relax.argmin": _index(topi.argmin, "smallest"),
    "relax.logical_not": _logical_not,
    "relax.not_equal": _not_equal,
}
"""The functions that lower the operators to TE, by name, for `LegalizeOps`."""
