"""Slices and shuffles of channels, as in ShuffleNet: one operator for each, which importers write as several.

`take` of the channels is the operator of a shuffle, which works in any layout; before TVM lowers a network, `take`
becomes reshapes and a permutation, which TVM computes without a table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax, tirx

from .constants import Array, constant_value, same_sizes, sizes_of
from .graph import Block, blocks_of, call_of, rebind

BEHIND_CHANNELS = 2
"""The axis after the channels, along which importers stack tensors whose channels are to alternate."""


def gather_shuffles(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with `take` where channels get another order: the groups' channels by turns.

    Before: `a = R.reshape(x, [n, g, c, h, w])`, `b = R.permute_dims(a, [0, 2, 1, 3, 4])`, `y = R.reshape(b, [n, c * g,
    h, w])`. After: `y = R.take(x, [0, c, 1, c + 1, ...], axis=1)`, for two groups.
    Before: `y = R.reshape(R.concat((a, b), axis=2), [n, c * 2, h, w])`. After: `y = R.take(R.concat((a, b), axis=1),
    [0, c, 1, c + 1, ...], axis=1)`.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            reshaped = call_of(value, "reshape")
            if reshaped is not None and var.ty.ndim == 4:
                found = _shuffled(reshaped, block)
                found = _stacked(reshaped, block) if found is None else found
                if found is not None:
                    values[var] = found
    return rebind(mod, values) if values else mod


def expand_shuffles(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with permutations of axes where `take` orders the groups' channels by turns, in any layout.

    Before: `y = R.take(x, [0, c, 1, c + 1, ...], axis=3)`.
    After: `y = R.reshape(R.permute_dims(R.reshape(x, [n, h, w, 2, c]), [0, 1, 2, 4, 3]), [n, h, w, 2 * c])`.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            take = call_of(value, "take")
            order = None if take is None else constant_value(take.args[1])
            if take is None or order is None or order.ndim != 1 or (shape := sizes_of(take.args[0].ty)) is None:
                continue
            axis = int(take.attrs.axis)
            groups = groups_of(order)
            if groups is None or shape[axis] != len(order):
                continue
            parts = [*shape[:axis], groups, len(order) // groups, *shape[axis + 1 :]]
            axes = [*range(axis), axis + 1, axis, *range(axis + 2, len(parts))]
            values[var] = relax.op.reshape(
                relax.op.permute_dims(relax.op.reshape(take.args[0], parts), axes), var.ty.shape
            )
    return rebind(mod, values) if values else mod


def chooses_channels(value: relax.Expr) -> bool:
    """Return whether a value is a slice of its operand's channels (N, C, H, W), or orders those of groups by turns."""
    if (found := call_of(value, "take", "strided_slice")) is None or found.ty.ndim != 4:
        return False
    if call_of(value, "strided_slice") is not None:
        return all(isinstance(each, relax.Tuple) for each in found.args[1:]) and _numbers(found.args[1]) == [1]
    order = constant_value(found.args[1])
    is_order = order is not None and order.ndim == 1 and groups_of(order) is not None
    return is_order and found.attrs.axis is not None and int(found.attrs.axis) == 1


def is_split(value: relax.Expr | None) -> bool:
    """Return whether a value splits the channels (N, C, H, W) of a tensor."""
    split = call_of(value, "split")
    if split is None or split.args[0].ty.ndim != 4 or not isinstance(split.args[0], relax.Var):
        return False
    return int(split.attrs.axis) % 4 == 1


def channels_of(value: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> relax.Var | None:
    """Return the tensor whose channels a value chooses, maybe as a part of a split; None for anything else."""
    if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
        split = values.get(value.tuple_value)
        return split.args[0] if split is not None and is_split(split) else None
    return value.args[0] if chooses_channels(value) and isinstance(value.args[0], relax.Var) else None


def with_channel_axis(value: relax.Call, axis: int) -> relax.Expr:
    """Return a choice of channels, or a split of them, with the channels on another axis."""
    if is_split(value):
        parts = value.attrs.indices_or_sections
        count = parts if isinstance(parts, (int, tirx.IntImm)) else None
        return relax.op.split(value.args[0], [int(part) for part in parts] if count is None else int(count), axis)
    if call_of(value, "take") is not None:
        return relax.op.take(*value.args, axis=axis)
    begin, end, strides = map(_numbers, value.args[2:])
    return relax.op.strided_slice(value.args[0], [axis], begin, end, strides)


def _numbers(values: relax.Tuple) -> list[int | tirx.PrimExpr]:
    return [int(value) if isinstance(value, tirx.IntImm) else value for value in values.fields]


def groups_of(order: Array) -> int | None:
    """Return the number of groups whose channels an order has by turns; None for any other order."""
    if order.size < 2 or order[1] < 1 or order.size % int(order[1]):
        return None
    groups = order.size // int(order[1])
    return groups if np.array_equal(order, _in_turns(groups, int(order[1]))) else None


def _in_turns(groups: int, channels: int) -> Array:
    order: Array = np.arange(groups * channels).reshape(groups, channels).T.reshape(-1)
    return order


def _take_in_turns(x: relax.Expr, groups: int, channels: int) -> relax.Expr:
    return relax.op.take(x, relax.const(_in_turns(groups, channels), "int64"), axis=1)


def _shuffled(reshaped: relax.Call, block: Block) -> relax.Expr | None:
    """Return the `take` for a permutation of channels between two reshapes; None for anything else."""
    permuted = call_of(block.values.get(reshaped.args[0]), "permute_dims")
    if (
        permuted is None
        or permuted.attrs.axes is None
        or [int(axis) for axis in permuted.attrs.axes] != [0, 2, 1, 3, 4]
    ):
        return None
    split = call_of(block.values.get(permuted.args[0]), "reshape")
    if split is None or split.args[0].ty.ndim != 4 or (parts := sizes_of(split.ty)) is None:
        return None
    n, groups, channels, *plane = parts
    if not isinstance(groups, int) or not isinstance(channels, int):
        return None
    whole = (n, groups * channels, *plane)
    if not same_sizes(split.args[0].ty, whole) or not same_sizes(reshaped.ty, whole):
        return None
    return _take_in_turns(split.args[0], groups, channels)


def _stacked(reshaped: relax.Call, block: Block) -> relax.Expr | None:
    """Return the `take` for tensors that are stacked after their channels, maybe cast; None for anything else."""
    stacked, casts = block.values.get(reshaped.args[0]), 0
    while (again := call_of(stacked, "reshape", "astype")) is not None:
        casts += call_of(again, "astype") is not None
        stacked = block.values.get(again.args[0])
    concat = call_of(stacked, "concat")
    if concat is None or int(concat.attrs.axis or 0) != BEHIND_CHANNELS or not isinstance(concat.args[0], relax.Tuple):
        return None
    fields = list(concat.args[0].fields)
    expanded = [call_of(block.values.get(field), "expand_dims") for field in fields if isinstance(field, relax.Var)]
    if len(expanded) == len(fields) and all(
        each is not None and [int(axis) for axis in each.attrs.axis] == [BEHIND_CHANNELS] for each in expanded
    ):
        fields = [each.args[0] for each in expanded]
    if not all(isinstance(field, relax.Var) and field.ty.ndim == 4 for field in fields):
        return None
    shape = sizes_of(fields[0].ty)
    if shape is None or not isinstance(shape[1], int) or not all(same_sizes(field.ty, shape) for field in fields):
        return None
    n, channels, *plane = shape
    if casts > 1 or not same_sizes(reshaped.ty, (n, channels * len(fields), *plane)):
        return None
    take = _take_in_turns(relax.op.concat(fields, axis=1), len(fields), channels)
    return relax.op.astype(take, str(reshaped.ty.dtype)) if casts else take
