"""Lowerings of comparisons of floats, so that NaN is unequal to every number and not at least any number.

TVM's simplifier turns `not a == b` into `a != b`, and `not a >= b` into `a < b`: LLVM computes both as false where a or
b is NaN.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import Expr

from ...graph.constants import constant_value


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


LOWERINGS = {"relax.logical_not": _logical_not, "relax.not_equal": _not_equal}
"""The functions that lower the operators to TE, by name, for `LegalizeOps`."""
