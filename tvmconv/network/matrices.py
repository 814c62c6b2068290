"""Linear layers of tensors of any rank as products of matrices, so that their kernels take in what is behind them.

Importers write them as products of tensors of several axes with a weight, or as those of matrices between reshapes,
which part them from an activation and from the addition of another tensor.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax

from ..dtypes import FLOATS
from ..substitution import substitute
from ..targets import backend_of
from .constants import constant_value, same_size, same_sizes, sizes_of
from .convolutions import is_linear
from .graph import Block, blocks_of, call_of, calls, free_variables, rebind
from .layouts import BY_ELEMENT

WITH_AN_AXIS = ("dequantize", "quantize")
"""The operators of `BY_ELEMENT` whose scale and zero point may be along any axis."""

ELEMENTWISE = (*(name for name in BY_ELEMENT if name not in WITH_AN_AXIS), "erf")


def with_rows_in_matrices(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with linear layers of constant weights, and what is computed of them, as matrices of rows.

    On a GPU, where such products have kernels of their own, the module stays as it is.

    Before, with x (2, 3, 8): `y = R.matmul(x, weight)`, `z = R.add(y, bias)`, `output = R.nn.softmax(z)`.
    After: `y = R.matmul(R.reshape(x, (6, 8)), weight)`, `z = R.add(y, bias)`,
    `output = R.nn.softmax(R.reshape(z, (2, 3, 16)))`.
    """
    if backend_of(target).on_gpu:
        return mod
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        values |= _Matrices(block).values()
    return rebind(mod, values)


class _Matrices:
    """The tensors of a dataflow block that are held as matrices, in which all axes but the last are the rows."""

    def __init__(self, block: Block) -> None:
        self._values = block.values
        self._held: dict[relax.Var, relax.Var] = {}
        """The variables that have the matrices of tensors: their own, or those that they were reshaped from."""
        cast = {each for var in block.casts for each in free_variables(block.values[var])}
        for var, value in block.values.items():
            if not block.is_inner(var) or var in block.casts or var in cast:
                continue
            if (source := self._reshaped(var, value)) is not None:
                self._held[var] = source
            elif _is_linear_layer(value) or self._is_by_element(var, value):
                self._held[var] = var

    def values(self) -> dict[relax.Var, relax.Expr]:
        """Return new values: those of matrices, and of what reads them as the tensors that they were."""
        found: dict[relax.Var, relax.Expr] = {}
        for var, value in self._values.items():
            if self._held.get(var) is var:
                count = 1 if calls(value, "matmul") else len(value.args)  # a weight is a matrix already
                operands = [*map(self._matrix, value.args[:count]), *value.args[count:]]
                found[var] = relax.Call(value.op, operands, value.attrs)
            elif var not in self._held:
                tensors = {each: self._tensor(each) for each in free_variables(value) if each in self._held}
                found |= {var: substitute(value, tensors)} if tensors else {}
        return found

    def _reshaped(self, var: relax.Var, value: relax.Expr) -> relax.Var | None:
        """Return the variable with the matrix of a tensor that is only another form of the same rows."""
        made = call_of(value, "reshape")
        if made is None or made.args[0] not in self._held:
            return None
        before, after = sizes_of(made.args[0].ty), sizes_of(var.ty)
        if not before or not after:
            return None
        (*rows, columns), (*others, last) = before, after
        is_same = bool(others) and same_size(columns, last) and same_size(prod(rows), prod(others))
        return self._held[made.args[0]] if is_same else None

    def _is_by_element(self, var: relax.Var, value: relax.Expr) -> bool:
        """Return whether a value is computed by element of tensors of its shape, held ones too, numbers and vectors."""
        if not calls(value, *ELEMENTWISE) or not any(each in self._held for each in value.args):
            return False
        tensors = [each for each in value.args if isinstance(each.ty, relax.TensorType) and not _is_vector(each, var)]
        return all(same_sizes(each.ty, sizes_of(var.ty) or ()) for each in tensors)

    def _matrix(self, operand: relax.Expr) -> relax.Expr:
        """Return an operand of what is held as a matrix: a tensor as one, and what is none or has one axis as it is."""
        if operand in self._held:
            return self._held[operand]
        if not isinstance(operand.ty, relax.TensorType):
            return operand
        if (vector := constant_value(operand)) is not None and vector.shape[:-1] == (1,) * (vector.ndim - 1):
            return relax.const(vector.reshape(vector.shape[-1:]), operand.ty.dtype)
        *rows, columns = sizes_of(operand.ty) or ()
        return operand if len(rows) == 1 else relax.op.reshape(operand, (prod(rows), columns))

    def _tensor(self, var: relax.Var) -> relax.Expr:
        """Return a tensor that is held as a matrix in its own shape."""
        return self._held[var] if var.ty.ndim == 2 else relax.op.reshape(self._held[var], var.ty.shape)


def _is_linear_layer(value: relax.Expr) -> bool:
    """Return whether a value is a product of a tensor's rows, of two axes or more, with a constant weight (C, K)."""
    if (product := call_of(value, "matmul")) is None or constant_value(product.args[1]) is None:
        return False
    x, w = (argument.ty for argument in product.args)
    rows = sizes_of(x) or ()
    in_floats = x.dtype == w.dtype == product.ty.dtype and str(x.dtype) in FLOATS
    return is_linear(value) or (in_floats and w.ndim == 2 and len(rows) > 2 and isinstance(rows[-1], int))


def _is_vector(operand: relax.Expr, var: relax.Var) -> bool:
    """Return whether an operand of a variable is a constant number, or a constant for each place on the last axis."""
    constant = constant_value(operand)
    return constant is not None and constant.ndim <= var.ty.ndim and constant.size in (1, *constant.shape[-1:])
