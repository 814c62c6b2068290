"""An operator that brings indices into the range of an axis, as one operator of Relax."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import register_op_attr

NAME = "relax.indices_in_range"
"""The operator's name. Its operands are integers and the sizes of the axes that they index.

One size is that of the axis that all elements index; of several ones, each is for one column of the integers' last
axis. The attribute "text" names a node and the axes where the integers may be out of range; elsewhere it is empty.
"""


def indices_in_range(indices: relax.Expr, sizes: Sequence[tirx.Expr], text: str) -> relax.Call:
    """Return indices that count from the beginning of an axis of some size, and are within it.

    A negative index counts from the end; others that are out of range become the first one or the last one.
    """
    attributes = tvm.ir.make_node("ir.DictAttrs", text=text)
    return relax.Call(tvm.ir.Op.get(NAME), [indices, relax.ShapeExpr(list(sizes))], attributes)


def clamped(indices: te.Tensor, sizes: Sequence[tirx.Expr]) -> te.Tensor:
    """Return the definition of the operator."""
    dtype = _dtype(indices.dtype)

    def element(*at: tirx.Expr) -> tirx.Expr:
        index, size = indices(*at).astype(dtype), size_of_column(at, sizes).astype(dtype)
        counted = tirx.Select(index < 0, index + size, index)
        return tirx.max(tirx.min(counted, size - 1), tirx.const(0, dtype))

    return te.compute(indices.shape, element, name="indices", tag=topi.tag.INJECTIVE)


def size_of_column(at: Sequence[tirx.Expr], sizes: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the size of the axis that the element at an index of `indices` indexes."""
    chosen = sizes[-1]
    for column in reversed(range(len(sizes) - 1)):
        chosen = tirx.Select(tirx.EQ(at[-1], tirx.const(column, at[-1].ty.dtype)), sizes[column], chosen)
    return chosen


def _dtype(dtype: str) -> str:
    """Return the dtype of the result: narrow integers have no sums with sizes."""
    return str(dtype) if str(dtype) in ("int32", "int64") else "int64"


def _type(call: relax.Call, _: object) -> relax.TensorType:
    ty = call.args[0].ty
    if ty.shape is None:
        return relax.TensorType(dtype=_dtype(ty.dtype), ndim=ty.ndim)
    return relax.TensorType(ty.shape, _dtype(ty.dtype))


def _lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(clamped, call.args[0], list(call.args[1]), primfunc_name_hint="in_range")


register_op_attr(NAME, "FInferType", _type)
register_op_attr(NAME, "FPurity", True)
register_op_attr(NAME, "FLegalize", _lowered)
