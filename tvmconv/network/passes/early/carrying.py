"""Channels that pass by layers, carried through the first one: shuffles that are permutations of weights.

A unit of ShuffleNetV2 computes with half of its channels, joins the others with the result, and shuffles all of them.
Here its first layer has identities for these others and hands them on beside its own results. The last one stores its
results in the place of those: what the unit makes is one tensor from the first layer on. Where a channel is then is
known when the network is built, and the layers behind have the rows of their weights in that order.

In half precision an identity is exact: a sum of an element and of zeros. Of an infinity, where numbers have left half
precision, it makes NaN.
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
from .passing import Passing, layer_of, order_of, parts_of_channels, passing_channels, vector_of_channels

VECTOR, LINE = 8, 64
"""The channels that memory has in a vector of 16 bytes in half precision, and in a line of the cache: layers compute a
multiple of these."""

ADDED = 8
"""The channels for each of which one may be added to have whole lines, as 58, 116 and 232 become 64, 128 and 256: a
layer of 256 takes three quarters of the time of one of 232 on an H100."""

MOST = 1.5
"""The most channels that are read of a tensor for each that is needed."""

CARRIED = 1
"""The weight of a channel that passes by a layer, in what the layer carries."""

NONE = np.arange(0)
"""The places of no channels."""

BY_PLANE = ("nn.avg_pool2d", "nn.max_pool2d", "nn.relu")
"""Operators of Relax that compute each channel of a tensor (N, C, H, W) from the same one of another."""


class Channels(NamedTuple):
    """The place of the channels of a tensor (N, C, H, W) in the new module: a tensor has them, and maybe more."""

    source: relax.Var
    """The tensor that has them."""
    width: int
    """The number of its channels."""
    places: Array
    """Its channel for each of them."""
    carried: Array
    """Its channel for each of those that are carried along."""


class _AsTheyWereError(Exception):
    """An operator needs its channels as they were."""


def carry_channels(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with the channels that pass by layers carried through these, in half precision.

    What is not one of their channels, such as one that fills a vector, is zero, or has a weight of zero. A dataflow
    block in which an operator needs channels as they were stays as it is, and without others the module is the same
    object. In a module that has changed no weight is compiled in: zeros beside identities are many, and not those that
    pay. Where all weights are to be compiled in, the module stays as it is.

    Before: `y = f(R.nn.relu(R.nn.conv2d(x[:, 8:], w)))`, `z = shuffled(R.concat((x[:, :8], y), axis=1))`,
    `output = R.nn.conv2d(z, v)`, with x from a ReLU.
    After: `a = R.nn.relu(R.nn.conv2d(x, [[1, 0], [0, w]]))`, `z = R.concat((a[:, :8], f(a[:, 8:])), axis=1)`,
    `output = R.nn.conv2d(z, permuted(v))`.
    """
    if context.precision not in HALVES or context.sparse == "always":
        return mod
    shuffled, values = gather_shuffles(simplify_batch_norms(mod)), dict[relax.Var, relax.Expr]()
    for block in blocks_of(shuffled):
        if passing := passing_channels(block):
            with suppress(_AsTheyWereError):
                values |= _Carrier(block, passing).values()
    if not values:
        return mod
    context.sparse = "never"
    return rebind(shuffled, values)


class _Carrier:
    """The new values of a block's variables."""

    def __init__(self, block: Block, passing: Sequence[Passing]) -> None:
        self._block = block
        self._aside = {var: each.aside for each in passing for var in each.carriers}
        self._passing = {each.joined: each for each in passing}
        self._known: dict[relax.Var, Channels] = {}
        self._values: dict[relax.Var, relax.Expr] = {}

    def values(self) -> dict[relax.Var, relax.Expr]:
        """Return the new values; raise `_AsTheyWereError` where an operator needs channels as they were."""
        for var in self._block.live({}):
            value = self._block.values[var]
            if is_split(value):
                if (split := self._known.get(value.args[0])) is not None:
                    self._known[var] = split  # its parts are channels of that
            elif (found := self._channels(var, value)) is None:
                if any(each in self._known for each in free_variables(value)):
                    raise _AsTheyWereError
            elif not found.source.same_as(var) or not np.array_equal(found.places, np.arange(found.width)):
                if not self._block.is_inner(var):
                    raise _AsTheyWereError
                self._known[var] = found
        return self._values

    def _channels(self, var: relax.Var, value: relax.Expr) -> Channels | None:
        """Return where the channels of a variable are; None for one that takes its operands as they were."""
        if (whole := channels_of(value, self._block.values)) is not None:
            x, order = self._of(whole), order_of(value, self._block)
            return None if order is None else x._replace(places=x.places[order], carried=NONE)
        if fields := parts_of_channels(value):
            return self._joined(var, fields)
        if (conv := layer_of(value)) is not None:
            return self._depthwise(var, conv) if int(conv.attrs.groups) > 1 else self._dense(var, conv)
        if (vector := vector_of_channels(value)) is not None:
            x = self._whole(var, value.args[0])
            full = np.full(x.width, calls(value, "multiply"), vector.dtype)
            full[x.places] = vector
            operands = [x.source, relax.const(full.reshape(-1, 1, 1), value.ty.dtype)]
        elif calls(value, *BY_PLANE) and value.ty.ndim == 4 and isinstance(value.args[0], relax.Var):
            x = self._whole(var, value.args[0])
            operands = [x.source, *value.args[1:]]
        else:
            return None
        self._values[var] = relax.Call(value.op, operands, value.attrs)
        return x._replace(source=var)

    def _dense(self, var: relax.Var, conv: relax.Call) -> Channels:
        x, weight = self._input(var, conv.args[0]), self._weight(conv)
        carried = np.arange(len(x.carried))
        places = _filled(len(carried)) + np.arange(len(weight))
        width = _filled(int(places[-1]) + 1)
        full = np.zeros((width, x.width, *weight.shape[2:]), weight.dtype)
        full[np.ix_(places, x.places)] = weight
        full[carried, x.carried] = CARRIED  # such a layer is one of pixels
        self._values[var] = _convolution(conv, x.source, full, 1)
        return Channels(var, width, places, carried)

    def _depthwise(self, var: relax.Var, conv: relax.Call) -> Channels:
        """Return where the channels of a depthwise layer are, which reads those from its first to its last one."""
        x, weight = self._of(conv.args[0]), self._weight(conv)
        begin, end = _range(x)
        places = x.places - begin
        full = np.zeros((end - begin, *weight.shape[1:]), weight.dtype)
        full[places] = weight
        self._values[var] = _convolution(conv, _part(x, begin, end), full, end - begin)
        return Channels(var, end - begin, places, NONE)

    def _joined(self, var: relax.Var, fields: list[relax.Var]) -> Channels:
        """Return where the channels of several tensors are: one behind the other, those that pass by in front."""
        parts, in_order = [self._of(each) for each in fields], list(range(len(fields)))
        if (passing := self._passing.get(var)) is not None:
            carrier = self._of(passing.carriers[-1])
            (aside,) = (place for place in in_order if fields[place].same_as(passing.aside))
            parts[aside] = carrier._replace(places=carrier.carried)
            in_order.sort(key=lambda place: place != aside)
        if all(x.source.same_as(parts[0].source) for x in parts):
            return parts[0]._replace(places=np.concatenate([x.places for x in parts]), carried=NONE)
        operands, places, width = list[relax.Expr](), [x.places for x in parts], 0
        for place in in_order:
            begin, end = _range(parts[place])
            operands.append(_part(parts[place], begin, end))
            places[place] = places[place] - begin + width
            width += end - begin
        self._values[var] = relax.op.concat(operands, 1)
        return Channels(var, width, np.concatenate(places), NONE)

    def _input(self, var: relax.Var, operand: relax.Var) -> Channels:
        """Return where the channels are that a variable is computed from, with those to be carried along."""
        x, aside = self._of(operand), self._aside.get(var)
        return x if aside is None or operand in self._aside else x._replace(carried=self._of(aside).places)

    def _whole(self, var: relax.Var, operand: relax.Var) -> Channels:
        """Return the same where a variable is computed of all channels of their source, with those that it carries."""
        x = self._of(operand)
        if x.width > MOST * (len(x.places) + len(x.carried)):
            raise _AsTheyWereError
        return x

    def _of(self, var: relax.Var) -> Channels:
        """Return where the channels of a variable are; in itself if nothing else is known."""
        if (known := self._known.get(var)) is not None:
            return known
        if not isinstance(channels := (sizes_of(var.ty) or [None, None])[1], int):
            raise _AsTheyWereError
        return Channels(var, channels, np.arange(channels), NONE)

    def _weight(self, conv: relax.Call) -> Array:
        weight = constant_value(conv.args[1])
        assert weight is not None
        return weight


def _filled(channels: int) -> int:
    """Return a number of channels rounded up to whole lines, or to whole vectors where lines are many more."""
    lines = -(-channels // LINE) * LINE
    return lines if (lines - channels) * ADDED <= channels else -(-channels // VECTOR) * VECTOR


def _range(x: Channels) -> tuple[int, int]:
    """Return the first channel and the end of those of a source that hold some, in whole vectors.

    Raises `_AsTheyWereError` where they are too many for what they hold.
    """
    begin, end = int(x.places.min()) // VECTOR * VECTOR, min(_filled(int(x.places.max()) + 1), x.width)
    if end - begin > MOST * len(x.places):
        raise _AsTheyWereError
    return begin, end


def _part(x: Channels, begin: int, end: int) -> relax.Expr:
    """Return some neighbouring channels of a source, which may be all."""
    return x.source if (begin, end) == (0, x.width) else relax.op.strided_slice(x.source, [1], [begin], [end], [1])


def _convolution(conv: relax.Call, x: relax.Expr, weight: Array, groups: int) -> relax.Expr:
    """Return a convolution with another input, weight and number of groups."""
    attrs = conv.attrs
    how = {name: list(map(int, getattr(attrs, name))) for name in ("strides", "padding", "dilation")}
    return relax.op.nn.conv2d(
        x, relax.const(weight, conv.args[1].ty.dtype), **how, groups=groups, out_dtype=attrs.out_dtype or None
    )
