"""exp2 and reciprocal by approximate GPU instructions, to about 2**-22: for results that are rounded to half precision.

Schedules and passes of TVM see them as operators, of which they make vectors as of any other. CUDA code calls the PTX
instructions `ex2` and `rcp` without the handling of denormal numbers that CUDA's own functions add; all other targets
compute the exact functions.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, Expr, register_op_attr

from tvmconv.targets.device_code import function, included
from tvmconv.targets.nvidia import CUDA

EXP2, RECIPROCAL = "tvmconv.exp2", "tvmconv.reciprocal"
"""The names of the operators."""

LARGEST = 2.0**126
"""The largest divisor whose reciprocal is a normal float32 number: above it the instruction returns 0."""

ROUNDING = frozenset(("ceil", "floor", "nearbyint", "round", "trunc"))
"""The names of functions that round to integers."""

COMPARISONS = tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE
"""The kinds of expressions that compare two numbers."""

LOG2_E = log2(e)
"""The base-2 logarithm of e."""

PURE = 1
"""The number of TVM's `CallEffectKind` for a call that just computes a value."""

BEFORE_TVM = 20
"""A level above that of TVM's own rules of lowering, which are at 10."""


def exp2(y: Expr) -> Expr:
    """Return two to the power of a float32 expression; 0 where that is below 2**-126."""
    return tirx.call_intrin("float32", EXP2, y)


def exp(y: Expr) -> Expr:
    """Return e to the power of a float32 expression; 0 where that is below 2**-126."""
    return exp2(y * tirx.const(LOG2_E, "float32"))


def quotient(a: Expr, b: Expr) -> Expr:
    """Return the quotient of two float32 expressions; 0 where the divisor is above 2**126, infinite below 2**-126."""
    reciprocal = tirx.call_intrin("float32", RECIPROCAL, b)
    is_one = isinstance(a, tirx.FloatImm) and a.value == 1
    return reciprocal if is_one else a * reciprocal


def approximated(value: Expr) -> Expr:
    """Return an expression with float32 `exp` and division replaced by `tvmconv.exp2` and `tvmconv.reciprocal`.

    Before: `exp(x - m) / s`. After: `tvmconv.exp2((x - m) * log2(e)) * tvmconv.reciprocal(s)`.
    """

    def of_division(each: tirx.Div) -> Expr:
        return quotient(each.a, each.b) if str(each.ty.dtype) == "float32" else each

    def of_call(each: Call) -> Expr:
        return exp(*each.args) if _function(each) == "exp" and str(each.ty.dtype) == "float32" else each

    return tvm_ffi.structural_map(value, ((tirx.Div, of_division), (Call, of_call)))


def _function(call: Call) -> str:
    """Return the name of a function that is called, such as "exp"."""
    return str(call.op.name).rpartition(".")[2]


def with_reciprocals(value: Expr) -> Expr:
    """Return an expression with float32 divisions by integers, and by most constants, replaced by reciprocals.

    A constant divisor is replaced if its absolute value is from 2**-126 to 2**126, where `quotient` is the quotient.

    Before: `s / 9.0`. After: `s * tvmconv.reciprocal(9.0)`.
    """

    def of_division(each: tirx.Div) -> Expr:
        divisor = each.b
        is_integer = isinstance(divisor, tirx.Cast) and "int" in str(divisor.value.ty.dtype)
        is_in_range = isinstance(divisor, tirx.FloatImm) and 1 / LARGEST <= abs(divisor.value) <= LARGEST
        is_known = str(each.ty.dtype) == "float32" and (is_integer or is_in_range)
        return quotient(each.a, divisor) if is_known else each

    return tvm_ffi.structural_map(value, (tirx.Div, of_division))


def is_approximated(value: Expr) -> bool:
    """Return whether an expression has a division or an exponential, which `approximated` may replace."""
    found = list[Expr]()

    def of_call(each: Call) -> None:
        if _function(each) == "exp":
            found.append(each)

    tvm_ffi.structural_walk(value, [(tirx.Div, found.append), (Call, of_call)])
    return bool(found)


def stepped_in(value: Expr) -> list[Expr]:
    """Return the subexpressions that are rounded to integers, cast to integers, or compared with other numbers than 0.

    A tiny error of such a subexpression may become a whole step: 41 times the approximate reciprocal of 41 is less than
    1.
    """
    found = list[Expr]()

    def of_call(each: Call) -> None:
        if _function(each) in ROUNDING:
            found.extend(each.args)

    def of_cast(each: tirx.Cast) -> None:
        if "float" in str(each.value.ty.dtype) and "float" not in str(each.ty.dtype):
            found.append(each.value)

    def of_comparison(each: tirx.LT) -> None:
        if not any(isinstance(side, tirx.FloatImm) and side.value == 0 for side in (each.a, each.b)):
            found.extend((each.a, each.b))

    comparisons = [(kind, of_comparison) for kind in COMPARISONS]
    tvm_ffi.structural_walk(value, [(Call, of_call), (tirx.Cast, of_cast), *comparisons])
    return found


def register_pure(name: str) -> None:
    """Register an operator that just computes a number from numbers, so that TVM makes vectors of it."""
    register_op_attr(name, "TCallEffectKind", PURE)
    register_op_attr(name, "TVectorizable", True)
    register_op_attr(name, "TScriptPrinterName", name)


def _register(name: str, otherwise: Callable[[Expr], Expr]) -> None:
    """Register an operator: in CUDA a function of `approximations.cuh`, on other targets the expression `otherwise`."""
    named, source = function(name.removeprefix("tvmconv.")), included("compute/approximations.cuh")

    def in_cuda(call: tirx.Call) -> Expr:
        return cuda_func_call(named, *call.args, source_code=source, return_type=str(call.ty.dtype))

    register_pure(name)
    tirx.register_intrin_lowering(name, target=CUDA.kind, f=in_cuda, level=BEFORE_TVM)
    tirx.register_intrin_lowering(name, target="default", f=lambda call: otherwise(*call.args), level=BEFORE_TVM)


_register(EXP2, tirx.exp2)
_register(RECIPROCAL, lambda y: 1.0 / y)
