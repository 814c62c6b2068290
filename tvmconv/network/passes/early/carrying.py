"""Channels that skip some layers, carried through the first of these, so that shuffles only permute weights.

A unit of ShuffleNetV2 computes with half of its channels, concatenates the other half with the result, and shuffles all
channels. Here the unit's first layer gets identity filters for that other half and outputs it beside its own results.
The last layer stores its results in the same tensor, over those of the first one: from the first layer on, the unit has
one tensor, and no concatenation. The position of each channel in it is known when the network is built, and the layers
after the unit have the input channels of their weights in that order.

In half precision an identity filter is exact: it adds zeros to an element. Only of an infinity, where numbers overflow
half precision, it makes NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax

from tvmconv.problem.precision import HALVES

from ...graph.constants import Array, constant_value, sizes_of
from ...graph.graph import Block, blocks_of, calls, free_variables, rebind
from ...graph.shuffles import channels_of, gather_shuffles, is_split
from ...sites.batch_norm import simplify_batch_norms
from ..context import Context
from .skipping_channels import (
    SkippingChannels,
    concatenated_channels,
    layer_of,
    order_of,
    skipping_channels,
    vector_of_channels,
)

VECTOR, LINE = 8, 64
"""The channels that memory has in a vector of 16 bytes in half precision, and in a line of the cache: layers compute a
multiple of these."""

ADDED = 8
"""The channels for each of which one may be added to fill whole lines, as 58, 116 and 232 become 64, 128 and 256: a
layer of 256 channels takes three quarters of the time of one of 232 on an H100."""

MAX_READ_PER_CHANNEL = 1.5
"""The most channels of a source that are read for each channel that is needed."""

CARRIED = 1
"""The element of an identity filter that copies a channel."""

NO_CHANNELS = np.arange(0)
"""The indices of no channels."""

BY_PLANE = ("nn.avg_pool2d", "nn.max_pool2d", "nn.relu")
"""Operators of Relax that compute each channel of a tensor (N, C, H, W) from the same channel of another tensor."""


class Channels(NamedTuple):
    """The source channels of a tensor (N, C, H, W): the channels of the new module's tensor that has them."""

    source: relax.Var
    """The tensor of the new module that has the channels."""
    width: int
    """The number of channels of the source."""
    source_channels: Array
    """The source channel of each channel of the tensor."""
    carried: Array
    """The source channel of each channel that skips the layers and is carried through them."""


class _NeedsOriginalChannelsError(Exception):
    """Raised where an operator needs its channels in their original tensor and order."""


def carry_channels(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with channels that skip layers carried through these, in half precision.

    A source channel that is none of the model's, such as one that fills up a vector, is zero, or is read with a weight
    of zero. A dataflow block with an operator that needs its original channels stays as it is; if all blocks do, the
    module itself is returned. In a module that has changed no weight is compiled in: it has many zeros beside
    identities, and they do not pay. With `sparse` "always" the module stays as it is.

    Before: `y = f(R.nn.relu(R.nn.conv2d(x[:, 8:], w)))`, `z = shuffled(R.concat((x[:, :8], y), axis=1))`,
    `output = R.nn.conv2d(z, v)`, with x from a ReLU.
    After: `a = R.nn.relu(R.nn.conv2d(x, [[1, 0], [0, w]]))`, `z = R.concat((a[:, :8], f(a[:, 8:])), axis=1)`,
    `output = R.nn.conv2d(z, permuted(v))`.
    """
    if context.precision not in HALVES or context.sparse == "always":
        return mod
    shuffled, values = gather_shuffles(simplify_batch_norms(mod)), dict[relax.Var, relax.Expr]()
    for block in blocks_of(shuffled):
        if units := skipping_channels(block):
            with suppress(_NeedsOriginalChannelsError):
                values |= _Carrier(block, units).values()
    if not values:
        return mod
    context.sparse = "never"
    return rebind(shuffled, values)


class _Carrier:
    """The new values of a dataflow block's variables, and the source channels of its tensors."""

    def __init__(self, block: Block, units: Sequence[SkippingChannels]) -> None:
        self._block = block
        self._skipping_of = {var: each.skipping for each in units for var in each.carriers}
        self._by_concat = {each.concat: each for each in units}
        self._known: dict[relax.Var, Channels] = {}
        self._values: dict[relax.Var, relax.Expr] = {}

    def values(self) -> dict[relax.Var, relax.Expr]:
        """Return the new values; raise `_NeedsOriginalChannelsError` where an operator needs its original channels."""
        for var in self._block.live({}):
            value = self._block.values[var]
            if is_split(value):
                if (split := self._known.get(value.args[0])) is not None:
                    self._known[var] = split  # `_channels` finds the parts of the split in its operand's source
            elif (found := self._channels(var, value)) is None:
                if any(each in self._known for each in free_variables(value)):
                    raise _NeedsOriginalChannelsError
            elif not found.source.same_as(var) or not np.array_equal(found.source_channels, np.arange(found.width)):
                if not self._block.is_inner(var):
                    raise _NeedsOriginalChannelsError
                self._known[var] = found
        return self._values

    def _channels(self, var: relax.Var, value: relax.Expr) -> Channels | None:
        """Return the source channels of a variable; None for an operator that needs its original channels."""
        if (whole := channels_of(value, self._block.values)) is not None:
            x, order = self._channels_of(whole), order_of(value, self._block)
            return None if order is None else x._replace(source_channels=x.source_channels[order], carried=NO_CHANNELS)
        if fields := concatenated_channels(value):
            return self._joined(var, fields)
        if (conv := layer_of(value)) is not None:
            return self._depthwise(var, conv) if int(conv.attrs.groups) > 1 else self._dense(var, conv)
        if (vector := vector_of_channels(value)) is not None:
            x = self._all_channels_of(var, value.args[0])
            full = np.full(x.width, calls(value, "multiply"), vector.dtype)
            full[x.source_channels] = vector
            operands = [x.source, relax.const(full.reshape(-1, 1, 1), value.ty.dtype)]
        elif calls(value, *BY_PLANE) and value.ty.ndim == 4 and isinstance(value.args[0], relax.Var):
            x = self._all_channels_of(var, value.args[0])
            operands = [x.source, *value.args[1:]]
        else:
            return None
        self._values[var] = relax.Call(value.op, operands, value.attrs)
        return x._replace(source=var)

    def _dense(self, var: relax.Var, conv: relax.Call) -> Channels:
        x, weight = self._input(var, conv.args[0]), self._weight(conv)
        carried = np.arange(len(x.carried))
        source_channels = _rounded_up(len(carried)) + np.arange(len(weight))
        width = _rounded_up(int(source_channels[-1]) + 1)
        full = np.zeros((width, x.width, *weight.shape[2:]), weight.dtype)
        full[np.ix_(source_channels, x.source_channels)] = weight
        full[carried, x.carried] = CARRIED  # the kernel of a layer that carries channels is 1x1
        self._values[var] = _convolution(conv, x.source, full, 1)
        return Channels(var, width, source_channels, carried)

    def _depthwise(self, var: relax.Var, conv: relax.Call) -> Channels:
        """Return the source channels of a depthwise layer, which reads those from the first needed to the last."""
        x, weight = self._channels_of(conv.args[0]), self._weight(conv)
        begin, end = _source_range(x)
        source_channels = x.source_channels - begin
        full = np.zeros((end - begin, *weight.shape[1:]), weight.dtype)
        full[source_channels] = weight
        self._values[var] = _convolution(conv, _part(x, begin, end), full, end - begin)
        return Channels(var, end - begin, source_channels, NO_CHANNELS)

    def _joined(self, var: relax.Var, fields: list[relax.Var]) -> Channels:
        """Return the source channels of a concatenation; in the new tensor, channels that skipped layers come first."""
        parts, in_order = [self._channels_of(each) for each in fields], list(range(len(fields)))
        if (unit := self._by_concat.get(var)) is not None:
            carrier = self._channels_of(unit.carriers[-1])
            (index_of_skipping,) = (index for index in in_order if fields[index].same_as(unit.skipping))
            parts[index_of_skipping] = carrier._replace(source_channels=carrier.carried)
            in_order.sort(key=lambda index: index != index_of_skipping)
        if all(x.source.same_as(parts[0].source) for x in parts):
            return parts[0]._replace(
                source_channels=np.concatenate([x.source_channels for x in parts]), carried=NO_CHANNELS
            )
        operands, source_channels, width = list[relax.Expr](), [x.source_channels for x in parts], 0
        for index in in_order:
            begin, end = _source_range(parts[index])
            operands.append(_part(parts[index], begin, end))
            source_channels[index] = source_channels[index] - begin + width
            width += end - begin
        self._values[var] = relax.op.concat(operands, 1)
        return Channels(var, width, np.concatenate(source_channels), NO_CHANNELS)

    def _input(self, var: relax.Var, operand: relax.Var) -> Channels:
        """Return the source channels of a layer's operand, with those to carry if it is the first to be skipped."""
        x, skipping = self._channels_of(operand), self._skipping_of.get(var)
        if skipping is None or operand in self._skipping_of:
            return x
        return x._replace(carried=self._channels_of(skipping).source_channels)

    def _all_channels_of(self, var: relax.Var, operand: relax.Var) -> Channels:
        """Return the source channels of the operand of an operator that computes all channels of the source.

        Raises `_NeedsOriginalChannelsError` if it would compute more than `MAX_READ_PER_CHANNEL` times the needed ones.
        """
        x = self._channels_of(operand)
        if x.width > MAX_READ_PER_CHANNEL * (len(x.source_channels) + len(x.carried)):
            raise _NeedsOriginalChannelsError
        return x

    def _channels_of(self, var: relax.Var) -> Channels:
        """Return the source channels of a variable: all channels of the variable itself if nothing else is known."""
        if (known := self._known.get(var)) is not None:
            return known
        if not isinstance(channels := (sizes_of(var.ty) or [None, None])[1], int):
            raise _NeedsOriginalChannelsError
        return Channels(var, channels, np.arange(channels), NO_CHANNELS)

    def _weight(self, conv: relax.Call) -> Array:
        weight = constant_value(conv.args[1])
        assert weight is not None
        return weight


def _rounded_up(channels: int) -> int:
    """Return a number of channels rounded up to whole lines, or to whole vectors where lines would add too many."""
    lines = -(-channels // LINE) * LINE
    return lines if (lines - channels) * ADDED <= channels else -(-channels // VECTOR) * VECTOR


def _source_range(x: Channels) -> tuple[int, int]:
    """Return the begin and the end of the source channels that a tensor lies in, in whole vectors.

    Raises `_NeedsOriginalChannelsError` for more than `MAX_READ_PER_CHANNEL` of them for each channel of the tensor.
    """
    first, last = int(x.source_channels.min()), int(x.source_channels.max())
    begin, end = first // VECTOR * VECTOR, min(_rounded_up(last + 1), x.width)
    if end - begin > MAX_READ_PER_CHANNEL * len(x.source_channels):
        raise _NeedsOriginalChannelsError
    return begin, end


def _part(x: Channels, begin: int, end: int) -> relax.Expr:
    """Return a slice of neighbouring source channels; the source itself if the slice has all of them."""
    return x.source if (begin, end) == (0, x.width) else relax.op.strided_slice(x.source, [1], [begin], [end], [1])


def _convolution(conv: relax.Call, x: relax.Expr, weight: Array, groups: int) -> relax.Expr:
    """Return a convolution with another input, weight and number of groups."""
    attrs = conv.attrs
    how = {name: list(map(int, getattr(attrs, name))) for name in ("strides", "padding", "dilation")}
    return relax.op.nn.conv2d(
        x, relax.const(weight, conv.args[1].ty.dtype), **how, groups=groups, out_dtype=attrs.out_dtype or None
    )
