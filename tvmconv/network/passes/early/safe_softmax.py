"""Softmax with zeros for rows of nothing but -inf, as torch's attention has it, as one operator of Relax."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx
from tvm.ir import register_op_attr

from ...graph.constants import constant_value, same_sizes, sizes_of
from ...graph.graph import Block, blocks_of, call_of, rebind

NAME = "nn.safe_softmax"
"""The name of the operator without "relax."; its operand has the rows along its last axis."""

SOFTMAX = ("nn.softmax", NAME)
"""The names of this operator and of Relax's softmax, which returns NaN for rows of -inf."""

STEPS = ("logical_not", "astype", "max", "astype", "logical_not", "equal")
"""The operators by which torch tests whether a row has nothing but -inf, the last one first."""


def with_safe_softmax(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the operator instead of the formula that torch's importer leaves.

    Before: `y = R.where(R.logical_not(R.max(R.logical_not(R.equal(x, -inf)), axis=[-1])), 0, R.nn.softmax(x))`, with
    casts of the truth values. After: `y = R.nn.safe_softmax(x)`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (where := call_of(value, "where")) is not None and (x := _operand(where, block)) is not None:
                values[var] = relax.Call(tvm.ir.Op.get(f"relax.{NAME}"), [x])
    return rebind(mod, values) if values else mod


def _operand(where: relax.Call, block: Block) -> relax.Expr | None:
    """Return the operand of the safe softmax that a `where` computes; None for any other `where`."""
    is_empty, zeros, shares = where.args
    zeros, softmax = constant_value(zeros), call_of(block.values.get(shares), "nn.softmax")
    if zeros is None or zeros.any() or softmax is None:
        return None
    last_axis = softmax.args[0].ty.ndim - 1
    if softmax.attrs.axis not in (-1, last_axis) or not same_sizes(where.ty, sizes_of(softmax.ty) or ()):
        return None
    for name in STEPS:
        step = call_of(block.values.get(is_empty), name)
        if step is None or (name == "max" and not _is_by_row(step, last_axis)):
            return None
        is_empty = step.args[0]
    lowest = constant_value(step.args[1])
    is_lowest = lowest is not None and lowest.size == 1 and bool(lowest.item() == -float("inf"))
    return softmax.args[0] if is_lowest and is_empty.same_as(softmax.args[0]) else None


def _is_by_row(maximum: relax.Call, last_axis: int) -> bool:
    """Return whether a maximum is along the last axis alone, and keeps that axis with one element."""
    axes = [int(axis) % (last_axis + 1) for axis in maximum.attrs.axis or ()]
    return bool(maximum.attrs.keepdims) and axes == [last_axis]


def _lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(safe_softmax, call.args[0])


def safe_softmax(x: te.Tensor) -> te.Tensor:
    """Return the definition of softmax with zeros for rows of -inf.

    TVM's maximum of such a row is finite, the lowest number, so that its exponentials are 0, and so is their sum.
    """
    *outer, count = x.shape
    k, j = (te.reduce_axis((0, count), name=name) for name in "kj")
    maxima = te.compute(outer, lambda *row: te.max(x(*row, k), axis=k), name="maxima")
    powers = te.compute(x.shape, lambda *at: tirx.exp(x(*at) - maxima(*at[:-1])), name="powers")
    total = te.compute(outer, lambda *row: te.sum(powers(*row, j), axis=j), name="total")
    zero = tirx.const(0, x.dtype)

    def share(*at: tirx.Var) -> tirx.PrimExpr:
        return tirx.Select(total(*at[:-1]) == zero, zero, powers(*at) / total(*at[:-1]))

    return te.compute(x.shape, share, name="shares")


register_op_attr(f"relax.{NAME}", "FInferType", lambda call, _: call.args[0].ty)
register_op_attr(f"relax.{NAME}", "FPurity", True)
register_op_attr(f"relax.{NAME}", "FLegalize", _lowered)
