"""Functions that a GPU has in hardware, to about 2**-21: for numbers that are rounded to half precision afterwards.

Schedules and passes of TVM see them as operators, of which they make vectors as of any other. CUDA code has the
instructions (CUDA C++ Programming Guide, section on intrinsic functions), all other code what they approximate.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, register_op_attr

EXP, QUOTIENT = "tvmconv.exp", "tvmconv.quotient"
"""The names of the operators."""

PURE = 1
"""The number of TVM's `CallEffectKind` for a call that just computes a value."""

BEFORE_TVM = 20
"""A level above that of TVM's own rules of lowering, which are at 10."""


def exp(y: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return e to the power of a float32 expression."""
    return tirx.call_intrin("float32", EXP, y)


def quotient(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the quotient of two float32 expressions; 0 where the divisor is above 2**126."""
    return tirx.call_intrin("float32", QUOTIENT, a, b)


def approximated(value: Expr) -> Expr:
    """Return an expression with these functions in the place of exponentials and quotients of float32.

    Before: `exp(x - m) / s`. After: `tvmconv.quotient(tvmconv.exp(x - m), s)`.
    """

    def of_division(each: tirx.Div) -> Expr:
        return quotient(each.a, each.b) if str(each.ty.dtype) == "float32" else each

    def of_call(each: Call) -> Expr:
        is_exp = str(each.op.name).rpartition(".")[2] == "exp" and str(each.ty.dtype) == "float32"
        return exp(*each.args) if is_exp else each

    return tvm_ffi.structural_map(value, ((tirx.Div, of_division), (Call, of_call)))


def _register(name: str, function: str, otherwise: Callable[..., tirx.PrimExpr]) -> None:
    """Register an operator that is a function of CUDA there, and something else elsewhere."""

    def in_cuda(call: tirx.Call) -> tirx.PrimExpr:
        return tirx.call_pure_extern(call.ty.dtype, function, *call.args)

    register_op_attr(name, "TCallEffectKind", PURE)
    register_op_attr(name, "TVectorizable", True)
    register_op_attr(name, "TScriptPrinterName", name)
    tirx.register_intrin_lowering(name, target="cuda", f=in_cuda, level=BEFORE_TVM)
    tirx.register_intrin_lowering(name, target="default", f=lambda call: otherwise(*call.args), level=BEFORE_TVM)


_register(EXP, "__expf", tirx.exp)
_register(QUOTIENT, "__fdividef", lambda a, b: a / b)
