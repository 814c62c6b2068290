"""Folding of constants, before anything looks for the weights of a convolution.

TVM's own FoldConstant compiles a function for each expression, which takes seconds for the constants that importers
make: a weight broadcast from a number, a bias reshaped, a bound of a clip tested for NaN. NumPy takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

Array = np.ndarray[Any, Any]

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.sqrt": np.sqrt,
    "relax.isnan": np.isnan,
    "relax.where": np.where,
    "relax.astype": np.asarray,
}
"""Operators that are functions of the elements of all their operands."""


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with expressions of constants in "main" replaced by constants.

    Before: `w = R.broadcast_to(R.const(0.5), R.shape([8, 1, 3, 3]))`, `y = R.nn.conv2d(x, w)`.
    After: `y = R.nn.conv2d(x, constant)`.
    """
    mod = mod.clone()
    mod["main"] = _Folder(mod).visit_expr(mod["main"])
    return relax.transform.CanonicalizeBindings()(mod)


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        operands = [self._value(argument) for argument in call.args if not isinstance(argument, relax.ShapeExpr)]
        values = [value for value in operands if value is not None]
        shape = static_shape(call.ty) if isinstance(call.ty, relax.TensorType) else None
        if len(values) < len(operands) or shape is None or not isinstance(call.op, tvm.ir.Op):
            return call
        result = evaluate(call, values, shape)
        return call if result is None else relax.const(result, call.ty.dtype)

    def _value(self, argument: relax.Expr) -> Array | None:
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        return constant_value(argument)


def evaluate(call: relax.Call, values: list[Array], shape: tuple[int, ...]) -> Array | None:
    """The value of a call whose operands are constants; None for an operator that is not worth knowing."""
    name = str(call.op.name)
    if name in ("relax.broadcast_to", "relax.full"):
        return np.broadcast_to(values[0], shape)
    if name in ("relax.reshape", "relax.expand_dims", "relax.squeeze"):
        return np.reshape(values[0], shape)
    if name == "relax.permute_dims":
        return np.transpose(values[0], tuple(call.attrs.axes))
    if name in ELEMENTWISE:
        return np.asarray(ELEMENTWISE[name](*values))
    return None


def constant_value(expr: relax.Expr | None) -> Array | None:
    """The value of a constant, None for anything else."""
    return np.asarray(expr.value.numpy()) if isinstance(expr, tvm.ir.GenericConst) else None


def static_shape(ty: relax.TensorType) -> tuple[int, ...] | None:
    """The shape of a tensor's type where every size is a number, else None."""
    if not isinstance(ty.shape, relax.ShapeExpr) or not all(isinstance(n, tvm.tirx.IntImm) for n in ty.shape):
        return None
    return tuple(int(n) for n in ty.shape)
