"""Channels that skip some layers and are concatenated with the layers' result, as in a unit of ShuffleNetV2."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from tvm import relax, tirx

from ...graph.constants import Array, constant_value, sizes_of
from ...graph.graph import Block, call_of, calls, concat_of
from ...graph.shuffles import channels_of, is_split


class SkippingChannels(NamedTuple):
    """Channels of a tensor that skip the layers on its other channels, and are concatenated with their result."""

    skipping: relax.Var
    """The slice with the channels that skip the layers."""
    carriers: list[relax.Var]
    """The variables of the first of these layers, a 1x1 convolution, and of its epilogue."""
    concat: relax.Var
    """The variable of the concatenation."""


def skipping_channels(block: Block) -> list[SkippingChannels]:
    """Return the channels of a block that skip layers and that the first of these layers could copy.

    With identity filters in its weight it copies them, as a ReLU keeps channels that are not negative.

    Before: `y = R.nn.relu(R.nn.conv2d(x[:, 8:], w))`, `z = R.concat((x[:, :8], f(y)), axis=1)`, with x from a ReLU.
    """
    found = []
    for var, value in block.values.items():
        fields = concatenated_channels(value)
        for skipping, last in (fields, fields[::-1]) if len(fields) == 2 else ():
            layers, x = _skipped_layers(last, var, block)
            carriers = _first_layer(layers, block)
            if not carriers or not _is_not_negative(skipping, block):
                continue
            if _source_of_channels(skipping, block).same_as(_source_of_channels(x, block)):
                found.append(SkippingChannels(skipping, carriers, var))
                break
    return found


def concatenated_channels(value: relax.Expr | None) -> list[relax.Var]:
    """Return the tensors (N, C, H, W) that a value concatenates along channels; none for any other value."""
    axis, fields = concat_of(value)
    return fields if axis == 1 and fields[0].ty.ndim == 4 else []


def layer_of(value: relax.Expr | None) -> relax.Call | None:
    """Return a two-dimensional convolution with a constant weight, dense or depthwise; None for anything else."""
    conv = call_of(value, "nn.conv2d")
    if conv is None or constant_value(conv.args[1]) is None or not isinstance(conv.args[0], relax.Var):
        return None
    layouts = [conv.attrs.data_layout, conv.attrs.kernel_layout, conv.attrs.out_layout]
    if layouts != ["NCHW", "OIHW", "NCHW"] or sizes_of(conv.args[0].ty) is None:
        return None
    groups, channels, outputs = int(conv.attrs.groups), conv.args[0].ty.shape[1], int(conv.args[1].ty.shape[0])
    is_supported = isinstance(channels, tirx.IntImm) and (groups == 1 or groups == outputs == int(channels))
    return conv if is_supported else None


def vector_of_channels(value: relax.Expr | None) -> Array | None:
    """Return the numbers (C,) that a value multiplies or adds to channels (N, C, H, W); None for other values."""
    found = call_of(value, "add", "multiply")
    number = None if found is None else constant_value(found.args[1])
    if number is None or found.ty.ndim != 4 or not isinstance(found.args[0], relax.Var) or number.ndim > 4:
        return None
    shape = (1,) * (4 - number.ndim) + number.shape
    return number.reshape(-1) if shape == (1, number.size, 1, 1) and number.size == found.ty.shape[1] else None


def order_of(value: relax.Expr, block: Block) -> Array | None:
    """Return the indices of the channels that a value chooses from its operand; None where they are not known."""
    if isinstance(value, relax.TupleGetItem):
        split = block.values[value.tuple_value]
        begins = np.cumsum([0, *(int(part.shape[1]) for part in split.ty.fields)])
        return np.arange(*list(pairwise(begins))[value.index])
    if calls(value, "take"):
        return constant_value(value.args[1])
    bounds = [list(each.fields) for each in value.args[2:]]
    if not all(isinstance(number, tirx.IntImm) for each in bounds for number in each):
        return None
    order: Array = np.arange(int(value.args[0].ty.shape[1]))[slice(*(int(number) for (number,) in bounds))]
    return order


def _skipped_layers(last: relax.Var, reader: relax.Var, block: Block) -> tuple[list[relax.Var], relax.Var]:
    """Return the variables of the layers before a reader, in order, and the tensor that the first of them reads.

    Each of them has the next one as its only reader.
    """
    layers = list[relax.Var]()
    while (only := block.only_reader(last)) is not None and only.same_as(reader):
        value = block.values[last]
        if layer_of(value) is None and vector_of_channels(value) is None and call_of(value, "nn.relu") is None:
            break
        layers.insert(0, last)
        last, reader = value.args[0], last
    return layers, last


def _first_layer(layers: list[relax.Var], block: Block) -> list[relax.Var]:
    """Return the variables of the first layer and its epilogue if it is a dense 1x1 convolution, else none."""
    indices = [index for index, each in enumerate(layers) if layer_of(block.values[each]) is not None]
    if not indices or indices[0] > 0:
        return []
    conv = block.values[layers[0]]
    is_of_pixels = list(conv.args[1].ty.shape)[2:] == [1, 1] and not any(map(int, conv.attrs.padding))
    if not is_of_pixels or int(conv.attrs.groups) > 1 or any(int(step) > 1 for step in conv.attrs.strides):
        return []
    return layers[: indices[1] if len(indices) > 1 else len(layers)]


def _source_of_channels(var: relax.Var, block: Block) -> relax.Var:
    """Return the tensor from which a variable chooses channels, maybe in several choices, or the variable."""
    value = block.values.get(var)
    source = None if value is None or is_split(value) else channels_of(value, block.values)
    return var if source is None else _source_of_channels(source, block)


def _is_not_negative(var: relax.Var, block: Block) -> bool:
    """Return whether a tensor comes from ReLU by pooling, concatenation and choices of channels alone."""
    value = block.values.get(_source_of_channels(var, block))
    if (pool := call_of(value, "nn.max_pool2d")) is not None:
        return isinstance(pool.args[0], relax.Var) and _is_not_negative(pool.args[0], block)
    fields = concatenated_channels(value)
    return calls(value, "nn.relu") or (bool(fields) and all(_is_not_negative(each, block) for each in fields))
