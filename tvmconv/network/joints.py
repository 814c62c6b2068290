"""Concatenations and parts of channels in NHWC that cost nothing: kernels store and read them in larger tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import tvm
from tvm import relax, tirx

from ..lowering import Columns
from ..lowering.signatures import itemsize
from .constants import static_shape
from .graph import Block, blocks_of, call_of
from .sites import Site

CHANNELS_LAST = 3
"""The axis of channels in NHWC."""

STORED_BYTES = 16
"""The bytes of a store of a kernel, of which the channels of each part have to be a multiple."""


class Slice(NamedTuple):
    """Neighbouring channels of a tensor, as a tensor of their own."""

    source: relax.Var
    columns: Columns
    """The place of these channels in the source."""
    end: int
    """The channel of the source behind them."""


class Joint(NamedTuple):
    """The place of a kernel's output in a joined tensor."""

    columns: Columns
    """Its channels there."""
    before: relax.Var | None
    """The tensor in whose place it is stored; None where its kernel gets memory for the whole."""
    whole: relax.Var
    """The variable that holds the joined tensor."""
    is_last: bool
    """True if the whole is there once this part is."""


def slices_of(mod: tvm.IRModule, values: Mapping[relax.Var, relax.Expr]) -> dict[relax.Var, Slice]:
    """Return the variables that are slices of channels in NHWC, with pixels of whole stores.

    `values` are the new ones of variables in NHWC.
    """
    found = {}
    for block in blocks_of(mod):
        for var in block.values:
            cut = call_of(values.get(var), "strided_slice")
            if cut is None or (shape := static_shape(cut.args[0].ty)) is None:
                continue
            numbers = [number for each in cut.args[1:] for number in each.fields]
            if len(numbers) != 4 or not all(isinstance(number, tirx.IntImm) for number in numbers):
                continue
            (axis, begin, end, step), size = map(int, numbers), itemsize(cut.args[0].ty.dtype)
            is_whole = all(number * size % STORED_BYTES == 0 for number in (shape[1], begin, end))
            if axis == CHANNELS_LAST and step == 1 and is_whole and 0 <= begin < end <= shape[1]:
                found[var] = Slice(cut.args[0], Columns(shape[1], begin), end)
    return found


def joints_of(
    mod: tvm.IRModule,
    sites: Sequence[Site],
    values: Mapping[relax.Var, relax.Expr],
    slices: Mapping[relax.Var, Slice],
) -> dict[relax.Var, Joint]:
    """Return the places of outputs in joined tensors, by their variables, given the sites whose kernels have rows.

    The parts of such a tensor are outputs of those kernels that nothing else reads, perhaps joined before; others stay
    concatenations. The first part may be channels that a tensor begins with of which nobody needs the others any more.

    Before: `a = conv(x)`, `b = conv(x)`, `y = R.concat((a, b), axis=3)`.
    After: `a` of as many channels as `y` has, `y = conv(x, a)` that stores its own behind those of `a`.
    """
    outputs = {site.output for site in sites if _is_in_stores(site)}
    found: dict[relax.Var, Joint] = {}
    for block in blocks_of(mod):
        order = {var: place for place, var in enumerate(block.values)}
        for whole in reversed(block.values):  # the outermost first: what is a part of it has nothing to join any more
            parts, base, first = _fields(values.get(whole)), None, 0
            if parts and (begin := slices.get(parts[0])) is not None and not begin.columns.first:
                if begin.source not in outputs:  # it may be an input, whose memory is not the network's
                    continue
                base, first, parts = begin.source, begin.end, parts[1:]
            parts = _outputs(parts, whole, block, values, outputs)
            if len(set(parts)) < max(1, len(parts)) or not found.keys().isdisjoint(parts):
                continue
            ends = list(accumulate((int(part.ty.shape[1]) for part in parts), initial=first))
            ordered = sorted(parts, key=order.__getitem__)
            if base is not None and not (
                ends[-1] == int(base.ty.shape[1]) and _is_over(base, whole, order[ordered[0]], block, slices)
            ):
                continue
            places = {part: Columns(ends[-1], begin) for part, begin in zip(parts, ends, strict=False)}
            for before, part in pairwise([base, *ordered]):
                found[part] = Joint(places[part], before, whole, part.same_as(ordered[-1]))
    return found


def _is_in_stores(site: Site) -> bool:
    """Return whether an output is in NHWC, of known sizes, with pixels of whole stores."""
    workload = site.described
    size = workload.out_channels * workload.output_storage.itemsize
    is_known = static_shape(site.output.ty) == workload.in_nchw().output_shape
    return workload.out_layout == "NHWC" and size % STORED_BYTES == 0 and is_known


def _fields(value: relax.Expr | None) -> list[relax.Var]:
    """Return the tensors that a value joins along the channels of NHWC; none for any other value."""
    concat = call_of(value, "concat")
    return [] if concat is None or int(concat.attrs.axis) != CHANNELS_LAST else list(concat.args[0].fields)


def _outputs(
    fields: Sequence[relax.Var],
    reader: relax.Var,
    block: Block,
    values: Mapping[relax.Var, relax.Expr],
    outputs: set[relax.Var],
) -> list[relax.Var]:
    """Return the outputs that a reader joins, perhaps joined before; none where others read them, or it joins more."""
    found: list[relax.Var] = []
    for field in fields:
        inner = [field] if field in outputs else _outputs(_fields(values.get(field)), field, block, values, outputs)
        if (only := block.only_reader(field)) is None or not only.same_as(reader) or not inner:
            return []
        found += inner
    return found


def _is_over(base: relax.Var, whole: relax.Var, place: int, block: Block, slices: Mapping[relax.Var, Slice]) -> bool:
    """Return whether all that reads a tensor but for the whole that it becomes part of is before a place of the block.

    Those are layers and others that read slices of it.
    """
    order = {var: number for number, var in enumerate(block.values)}
    if not all(each in slices for each in block.readers(base)):
        return False
    readers = [reader for each in block.readers(base) for reader in block.readers(each) if not reader.same_as(whole)]
    return all(order[reader] < place for reader in readers)
