"""Folding of constants, which runs before any pass looks for the weights of a convolution.

TVM's own FoldConstant compiles a function for each expression, which takes seconds for the constants that importers
make: a weight broadcast from a number, a bias reshaped, a bound of a clip tested for NaN. NumPy takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from .graph import operator_name

Array = np.ndarray[Any, Any]

RESHAPING: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "relax.broadcast_to": np.broadcast_to,
    "relax.expand_dims": np.reshape,
    "relax.full": np.broadcast_to,
    "relax.reshape": np.reshape,
    "relax.squeeze": np.reshape,
}
"""NumPy's functions for operators whose result depends on their first operand and on the shape of the result."""

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.astype": np.asarray,
    "relax.divide": np.divide,
    "relax.isnan": np.isnan,
    "relax.less_equal": np.less_equal,
    "relax.logical_and": np.logical_and,
    "relax.multiply": np.multiply,
    "relax.sqrt": np.sqrt,
    "relax.subtract": np.subtract,
    "relax.where": np.where,
}
"""NumPy's functions for operators that combine the elements of all their operands."""


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with expressions of constants in "main" replaced by constants.

    A choice by a constant condition that is the same everywhere, and a broadcast that changes no size, become their
    operand; concatenations lose parts without elements.

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
        name = operator_name(call)
        if name == "relax.concat":
            return _without_empty_parts(call)
        if name not in RESHAPING and name not in ELEMENTWISE and name != "relax.permute_dims":
            return call
        operands = [self._value(argument) for argument in call.args if not isinstance(argument, relax.ShapeExpr)]
        values, shape = [value for value in operands if value is not None], static_shape(call.ty)
        # Integers are divided with a rounding that NumPy does not have.
        if len(values) < len(operands) or shape is None or (name == "relax.divide" and values[0].dtype.kind != "f"):
            return call if shape is None else self._chosen(call, shape)
        if name in RESHAPING:
            result = RESHAPING[name](values[0], shape)
        elif name in ELEMENTWISE:
            result = ELEMENTWISE[name](*values)
        else:
            result = np.transpose(values[0], None if call.attrs.axes is None else tuple(call.attrs.axes))
        return relax.const(result, call.ty.dtype)

    def _chosen(self, call: relax.Call, shape: tuple[int, ...]) -> relax.Expr:
        """Return the operand that a call always returns, as it has the result's shape; else the call."""
        chosen = call.args[0] if operator_name(call) == "relax.broadcast_to" else None
        if operator_name(call) == "relax.where" and (condition := self._value(call.args[0])) is not None:
            chosen = call.args[1] if condition.all() else call.args[2] if not condition.any() else None
        return call if chosen is None or static_shape(chosen.ty) != shape else chosen

    def _value(self, argument: relax.Expr) -> Array | None:
        return constant_value(self.lookup_binding(argument) if isinstance(argument, relax.Var) else argument)


def _without_empty_parts(call: relax.Call) -> relax.Expr:
    """Return a concatenation without the parts that have no elements; the part itself where one has all of them."""
    axis, fields = int(call.attrs.axis), call.args[0]
    if not isinstance(fields, relax.Tuple):
        return call
    shapes = [sizes_of(each.ty) for each in fields.fields]
    empty = [shape is not None and isinstance(shape[axis], int) and shape[axis] == 0 for shape in shapes]
    left = [each for each, is_empty in zip(fields.fields, empty, strict=True) if not is_empty]
    if not left or len(left) == len(fields.fields):
        return call
    return left[0] if len(left) == 1 else relax.Call(call.op, [relax.Tuple(left)], call.attrs)


def constant_value(expr: relax.Expr | None) -> Array | None:
    """Return the value of a constant; None for anything else."""
    return np.asarray(expr.value.numpy()) if isinstance(expr, tvm.ir.GenericConst) else None


def sizes_of(ty: relax.TensorType) -> tuple[int | tvm.tirx.PrimExpr, ...] | None:
    """Return the sizes of a tensor's type: numbers, and expressions of those that are known only when the model runs.

    None where even the number of axes is not known.
    """
    if not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return tuple(int(n) if isinstance(n, tvm.tirx.IntImm) else n for n in ty.shape)


def static_shape(ty: relax.TensorType) -> tuple[int, ...] | None:
    """Return the shape of a tensor's type where every size is a number, else None."""
    sizes = sizes_of(ty)
    return sizes if sizes is not None and all(isinstance(n, int) for n in sizes) else None


def same_sizes(ty: relax.TensorType, shape: Sequence[int | tvm.tirx.PrimExpr]) -> bool:
    """Return whether a tensor's type has the sizes of a shape, whatever values open ones will have."""
    sizes = sizes_of(ty)
    return sizes is not None and len(sizes) == len(shape) and all(map(same_size, sizes, shape))


def same_size(size: int | tvm.tirx.PrimExpr, other: int | tvm.tirx.PrimExpr) -> bool:
    """Return whether two sizes are the same, whatever values open ones will have."""
    if isinstance(size, int) or isinstance(other, int):
        return isinstance(size, int) and isinstance(other, int) and size == other
    return bool(tvm_ffi.structural_equal(size, other)) or Analyzer().can_prove_equal(size, other)
