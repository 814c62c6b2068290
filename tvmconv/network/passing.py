"""Channels that pass by some layers and are joined with the result, as those of a unit of ShuffleNetV2 are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from tvm import relax, tirx

from .constants import Array, constant_value, sizes_of
from .graph import Block, call_of, calls
from .shuffles import channels_of, is_split


def passing_channels(block: Block) -> dict[relax.Var, relax.Var]:
    """Return the variables of layers that channels pass by, each with the variable that has these channels.

    Channels that pass by are of the tensor of which the first layer reads others, and are not negative: each layer
    would leave them as they are if it had an identity for them.

    Before: `y = R.nn.relu(R.nn.conv2d(x[:, 8:], w))`, `z = R.concat((x[:, :8], y), axis=1)`, with x from a ReLU.
    After: `x[:, :8]` for both the convolution and the ReLU.
    """
    found: dict[relax.Var, relax.Var] = {}
    for var, value in block.values.items():
        fields = parts_of_channels(value)
        for aside, last in (fields, fields[::-1]) if len(fields) == 2 else ():
            layers, x = _layers(last, var, block)
            if layers and _whole(aside, block).same_as(_whole(x, block)) and _is_not_negative(aside, block):
                found.update(dict.fromkeys(layers, aside))
                break
    return found


def parts_of_channels(value: relax.Expr | None) -> list[relax.Var]:
    """Return the tensors that a value joins along channels (N, C, H, W); none for any other value."""
    concat = call_of(value, "concat")
    if concat is None or concat.ty.ndim != 4 or int(concat.attrs.axis or 0) % 4 != 1:
        return []
    fields = list(concat.args[0].fields) if isinstance(concat.args[0], relax.Tuple) else []
    return fields if all(isinstance(each, relax.Var) for each in fields) else []


def layer_of(value: relax.Expr | None) -> relax.Call | None:
    """Return a convolution of planes with a constant weight, dense or of single channels; None for anything else."""
    conv = call_of(value, "nn.conv2d")
    if conv is None or constant_value(conv.args[1]) is None or not isinstance(conv.args[0], relax.Var):
        return None
    layouts = [conv.attrs.data_layout, conv.attrs.kernel_layout, conv.attrs.out_layout]
    if layouts != ["NCHW", "OIHW", "NCHW"] or sizes_of(conv.args[0].ty) is None:
        return None
    groups, channels, outputs = int(conv.attrs.groups), conv.args[0].ty.shape[1], int(conv.args[1].ty.shape[0])
    is_taken = isinstance(channels, tirx.IntImm) and groups in (1, int(channels)) and (groups == 1 or outputs == groups)
    return conv if is_taken else None


def vector_of_channels(value: relax.Expr | None) -> Array | None:
    """Return the numbers (C,) that are multiplied by channels (N, C, H, W), or added to them; None for other values."""
    found = call_of(value, "add", "multiply")
    number = None if found is None else constant_value(found.args[1])
    if number is None or found.ty.ndim != 4 or not isinstance(found.args[0], relax.Var) or number.ndim > 4:
        return None
    shape = (1,) * (4 - number.ndim) + number.shape
    return number.reshape(-1) if shape == (1, number.size, 1, 1) and number.size == found.ty.shape[1] else None


def order_of(value: relax.Expr, block: Block) -> Array | None:
    """Return the channels of a tensor that a value has, which are some of its; None where they are not known."""
    if isinstance(value, relax.TupleGetItem):
        split = block.values[value.tuple_value]
        begins = np.cumsum([0, *(int(part.shape[1]) for part in split.ty.fields)])
        return np.arange(*list(pairwise(begins))[value.index])
    if calls(value, "take"):
        return constant_value(value.args[1])
    bounds = [list(each.fields) for each in value.args[2:]]
    if not all(isinstance(number, tirx.IntImm) for each in bounds for number in each):
        return None
    order: Array = np.arange(int(value.args[0].ty.shape[1]))[slice(*(int(number) for number, in bounds))]
    return order


def _layers(last: relax.Var, reader: relax.Var, block: Block) -> tuple[list[relax.Var], relax.Var]:
    """Return the variables of the layers before a reader, and the tensor that the first of them reads.

    Nothing reads them but the next one. They are such as have the planes of their input as they are in an identity.
    """
    layers = list[relax.Var]()
    while (only := block.only_reader(last)) is not None and only.same_as(reader):
        value = block.values.get(last)
        if not (_keeps_planes(value) or calls(value, "nn.relu") or vector_of_channels(value) is not None):
            break
        layers.append(last)
        last, reader = value.args[0], last
    return layers, last


def _keeps_planes(value: relax.Expr | None) -> bool:
    """Return whether a value is a convolution of pixels, or of single channels, with the planes of its input."""
    if (conv := layer_of(value)) is None:
        return False
    rows, columns = map(int, list(conv.args[1].ty.shape)[2:])
    if int(conv.attrs.groups) == 1 and rows * columns > 1:
        return False
    reach = [int(step) * (size - 1) for step, size in zip(conv.attrs.dilation, (rows, columns), strict=True)]
    padding = [2 * int(each) for each in conv.attrs.padding]
    return all(int(step) == 1 for step in conv.attrs.strides) and padding == reach + reach


def _whole(var: relax.Var, block: Block) -> relax.Var:
    """Return the tensor that a variable has channels of; the variable itself where there is none."""
    value = block.values.get(var)
    source = None if value is None or is_split(value) else channels_of(value, block.values)
    return var if source is None else _whole(source, block)


def _is_not_negative(var: relax.Var, block: Block) -> bool:
    """Return whether the elements of a tensor are zero or more, in whatever order."""
    value = block.values.get(_whole(var, block))
    if calls(value, "nn.max_pool2d"):
        return isinstance(value.args[0], relax.Var) and _is_not_negative(value.args[0], block)
    fields = parts_of_channels(value)
    return calls(value, "nn.relu") or (bool(fields) and all(_is_not_negative(each, block) for each in fields))
