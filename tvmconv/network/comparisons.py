"""Lowerings of operators that compare floats, so that NaN is unequal to every number and passes bounds unchanged.

TVM's simplifier turns `not a == b` into `a != b`, and `not a >= b` into `a < b`: LLVM computes both as false where a or
b is NaN. TVM's larger of two numbers is the second one where one of them is NaN, so that its ReLU makes 0 of NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Expr

from .constants import constant_value

Function = Callable[..., Expr]
"""A function from one element of each operand, all of one dtype, to an element of the result."""

Lowering = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
"""A function that lowers a call of an operator, for `LegalizeOps`."""


def _not(truth: Expr) -> Expr:
    """Return the negation of a comparison in a form that the simplifier does not turn into another comparison."""
    return tirx.Select(truth, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _unequal(a: Expr, b: Expr) -> Expr:
    return _not(a == b)


def _larger(a: Expr, b: Expr) -> Expr:
    if _is_number(b):
        return tirx.Select(a < b, b, a)
    return tirx.Select(a > b, a, tirx.Select(b >= a, b, a + b))  # a sum with NaN is NaN


def _smaller(a: Expr, b: Expr) -> Expr:
    if _is_number(b):
        return tirx.Select(a > b, b, a)
    return tirx.Select(a < b, a, tirx.Select(b <= a, b, a + b))


def _is_number(value: Expr) -> bool:
    return isinstance(value, tirx.FloatImm) and not isnan(value.value)


def _at_least(a: Expr, low: float) -> Expr:
    return _larger(a, tirx.const(low, a.ty.dtype))


def _clipped(a: Expr, low: float, high: float) -> Expr:
    return _smaller(_at_least(a, low), tirx.const(high, a.ty.dtype))


def _elementwise(function: Function, *bounds: float, dtypes: str = "float") -> Lowering:
    """Return the lowering of an operator that computes `function(*elements, *bounds)` for each element of its result.

    A call is lowered as TVM does unless the name of its dtype contains `dtypes`.
    """

    def lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if dtypes not in str(call.args[0].ty.dtype):
            return call.op.get_attr("FLegalize")(builder, call)
        name = str(call.op.name).rpartition(".")[2]
        return builder.call_te(computed, call.ty.shape, *map(_operand, call.args), primfunc_name_hint=name)

    def computed(shape: Sequence[Any], *operands: Any) -> te.Tensor:
        return te.compute(shape, lambda *at: function(*(_element(each, at) for each in operands), *bounds), "compared")

    return lowered


def _operand(operand: relax.Expr) -> Any:
    """Return the number of a clip's bound or of a constant without axes; return any other operand as it is."""
    if isinstance(operand, tirx.FloatImm | tirx.IntImm):
        return float(operand.value)
    value = constant_value(operand)
    return operand if value is None or value.ndim else tirx.const(value.item(), str(operand.ty.dtype))


def _element(operand: Any, at: Sequence[tirx.Var]) -> Any:
    """Return the element of an operand for an index of the result: of a tensor after broadcasting, or the number."""
    if not isinstance(operand, te.Tensor):
        return operand
    inner = zip(operand.shape, at[len(at) - operand.ndim :], strict=True)
    return operand(*(0 if isinstance(size, tirx.IntImm) and size.value == 1 else index for size, index in inner))


LOWERINGS: dict[str, Lowering] = {
    "relax.clip": _elementwise(_clipped),
    "relax.logical_not": _elementwise(_not, dtypes="bool"),
    "relax.maximum": _elementwise(_larger),
    "relax.minimum": _elementwise(_smaller),
    "relax.nn.relu": _elementwise(_at_least, 0.0),
    "relax.nn.relu6": _elementwise(_clipped, 0.0, 6.0),
    "relax.not_equal": _elementwise(_unequal),
}
"""The functions that lower the operators to TE, by name, for `LegalizeOps`."""
