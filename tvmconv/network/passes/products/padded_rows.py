"""Rows that one product stores and the next one sums over, such as scores of attention: they stay padded in between."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from tvm import relax, te, tirx

from ...graph.constants import constant_value, sizes_of
from ...graph.graph import Block, call_of, calls
from ..early.safe_softmax import SOFTMAX

JOINING = ("add", "divide", "multiply", "subtract")
"""Operators that may combine scores with constants."""


class PaddedPath(NamedTuple):
    """The values between two products, with padded rows."""

    values: dict[relax.Var, relax.Expr]
    """The new values of variables."""
    product: relax.Var
    """The product that reads them as its first factor."""


def padded_path(output: relax.Var, block: Block, padded: int, builder: relax.BlockBuilder) -> PaddedPath | None:
    """Return the values between a product and the next one, with rows padded to `padded` elements.

    None where there is no next product, or where operators are in between other than a softmax of the rows, casts,
    reshapes, and constants before the softmax. The softmax leaves zeros past the end of each row.

    Before, with rows of 197: `y = R.multiply(x, 0.125)`, `z = R.nn.softmax(y)`, `output = R.matmul(z, v)`.
    After: `y = R.multiply(x, 0.125)`, `z = R.nn.softmax(R.call_tir(cut_rows, (y,)))`, of rows of 200 that end in -inf.
    """
    values: dict[relax.Var, relax.Expr] = {}
    var, columns, is_zero = output, int(output.ty.shape[-1]), False
    while (reader := block.only_reader(var)) is not None:
        value = block.values[reader]
        if calls(value, "matmul"):
            first, second = (each.same_as(var) for each in value.args)
            return PaddedPath(values, reader) if is_zero and first and not second else None
        if is_zero and calls(value, *JOINING):  # the padding would not stay zero
            return None
        widened = _widened(value, var, columns, padded, builder)
        if widened is None:
            return None
        values[reader] = widened
        is_zero |= calls(value, *SOFTMAX)
        var = reader
    return None


def _widened(
    value: relax.Expr, var: relax.Var, columns: int, padded: int, builder: relax.BlockBuilder
) -> relax.Expr | None:
    """Return the value of an operator on a variable with padded rows; None for an operator that does not keep rows."""
    if not isinstance(value.ty, relax.TensorType):
        return None
    (*outer, last), before = sizes_of(value.ty) or (None,), sizes_of(var.ty) or ()
    if last != columns:
        return None
    if calls(value, "reshape"):
        return relax.op.reshape(var, (*outer, padded))
    if calls(value, "astype"):
        return relax.op.astype(var, str(value.ty.dtype))
    softmax, dtype = call_of(value, *SOFTMAX), str(var.ty.dtype)
    if softmax is not None and (softmax.attrs is None or softmax.attrs.axis in (-1, len(before) - 1)):
        function = builder.add_func(_cut((*before[:-1], padded), columns, dtype), "cut_rows")
        cut = relax.call_tir(function, [var], relax.TensorType((*before[:-1], padded), dtype))
        return relax.Call(softmax.op, [cut], softmax.attrs)
    if (joined := call_of(value, *JOINING)) is not None and len(before) == len(outer) + 1:
        operands = [var if each.same_as(var) else _padded(each, columns, padded) for each in joined.args]
        return None if None in operands else relax.Call(joined.op, operands, joined.attrs)
    return None


def _cut(shape: tuple[int, ...], columns: int, dtype: str) -> tirx.PrimFunc:
    """Return the function that keeps the first `columns` elements of each row, and makes the rest -inf."""
    x = te.placeholder([tirx.const(size, "int64") for size in shape], dtype, name="x")  # Relax's type of sizes

    def element(*axes: tirx.Var) -> tirx.PrimExpr:
        return tirx.Select(axes[-1] < columns, x(*axes), tirx.const(-inf, dtype))

    func = te.create_prim_func([x, te.compute(x.shape, element, name="cut")])
    return func.without_attr("global_symbol")


def _padded(operand: relax.Expr, columns: int, padded: int) -> relax.Expr | None:
    """Return a constant, padded like the rows that an operator combines it with; None for a computed operand."""
    if (constant := constant_value(operand)) is None:
        return None
    if constant.ndim == 0 or constant.shape[-1] == 1:
        return operand
    behind = [(0, 0)] * (constant.ndim - 1) + [(0, padded - columns)]
    return relax.const(np.pad(constant, behind, mode="edge"), operand.ty.dtype)
