"""Queries, keys and values of attention: slices of a tensor, and scales that move from factors to products."""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.constants import constant_value, sizes_of
from ...graph.graph import Block, blocks_of, call_of, calls, rebind
from ...graph.views import MOVES, last_view_of


def slice_single_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with slices instead of `take` of one index of an axis, which reads the index from a table.

    Before: `y = R.take(x, 2, axis=1)`. After: `y = R.squeeze(R.strided_slice(x, [1], [2], [3]), axis=[1])`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (take := call_of(value, "take")) is None or take.attrs.axis is None:
                continue
            index, sizes = constant_value(take.args[1]), sizes_of(take.args[0].ty)
            if index is None or index.ndim or sizes is None:
                continue
            axis = int(take.attrs.axis) % len(sizes)
            if isinstance(size := sizes[axis], int) and 0 <= (begin := int(index)) < size:
                part = relax.op.strided_slice(take.args[0], [axis], [begin], [begin + 1], [1])
                values[var] = relax.op.squeeze(part, [axis])
    return rebind(mod, values)


def scale_results(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with scales moved from the factors of products of two computed tensors to their results.

    Then a kernel reads a factor as its layer has stored it, and softmax takes in the scale, which comes after moves of
    the result. Only products in float32 change: in a model in float16 a scale below 1 may be what keeps them finite.

    Before: `y = R.multiply(x, 0.125)`, `q = R.permute_dims(y, axes=[0, 2, 1, 3])`, `scores = R.matmul(q, k)`.
    After: `q = R.permute_dims(x, axes=[0, 2, 1, 3])`, `scores = R.multiply(R.matmul(q, k), 0.125)`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if not calls(value, "matmul") or str(value.ty.dtype) != "float32":
                continue
            if any(constant_value(factor) is not None for factor in value.args):
                continue
            factors, scales = list(value.args), []
            for number, factor in enumerate(value.args):
                if (found := _scaled(factor, var, block)) is None:
                    continue
                scaling, reader = found
                scales.append(scaling)
                if reader.same_as(var):
                    factors[number] = scaling.args[0]
                else:
                    move = block.values[reader]
                    values[reader] = relax.Call(move.op, [scaling.args[0], *move.args[1:]], move.attrs)
            if scales:
                values[var] = relax.Call(value.op, factors, value.attrs)
                last = last_view_of(var, block)
                result = values.get(last, block.values[last])
                for scaling in scales:
                    result = relax.Call(scaling.op, [result, _number(scaling.args[1])], scaling.attrs)
                values[last] = result
    return rebind(mod, values)


def _scaled(factor: relax.Expr, product: relax.Var, block: Block) -> tuple[relax.Call, relax.Var] | None:
    """Return the multiplication by a number from which moves alone make a factor, and its reader; None without one.

    No variable on the way has another reader.
    """
    reader = product
    while isinstance(factor, relax.Var) and (read := block.only_reader(factor)) is not None and read.same_as(reader):
        value = block.values.get(factor)
        if (scaling := call_of(value, "multiply", "divide")) is not None:
            number = constant_value(scaling.args[1])
            is_scale = number is not None and number.size == 1 and scaling.args[0].ty.ndim >= number.ndim
            return (scaling, reader) if is_scale else None
        if (move := call_of(value, *MOVES)) is None:
            return None
        factor, reader = move.args[0], factor
    return None


def _number(constant: relax.Expr) -> relax.Expr:
    """Return a constant of one element as a number."""
    value = constant_value(constant)
    assert value is not None
    return relax.const(value.reshape(()), constant.ty.dtype)
