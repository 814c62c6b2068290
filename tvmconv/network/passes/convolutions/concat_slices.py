"""Kernels that write their results into the buffers of concatenations; in NHWC they read slices of channels, and write
the result of depth to space, without copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import accumulate, pairwise

import tvm
from tvm import relax, tirx

from tvmconv.lowering import Interleaved, Span
from tvmconv.lowering.signatures import itemsize
from tvmconv.problem.layout import Layout, data_layout

from ...graph.constants import same_sizes, static_shape
from ...graph.graph import Block, blocks_of, call_of, calls, concat_of, operator_name
from ...graph.interleaving import Interleaving, interleaving
from ...sites import Site
from ..context import ConcatSlice, Slice
from .layouts import POOLING

CHANNELS_LAST = 3
"""The axis of channels in NHWC."""

STORED_BYTES = 16
"""The bytes that a kernel stores at once: the bytes of each part's channels have to be a multiple."""


def slices_of(
    mod: tvm.IRModule, sites: Sequence[Site], values: Mapping[relax.Var, relax.Expr]
) -> dict[relax.Var, Slice]:
    """Return the variables that are slices of channels in NHWC, with begin and end at multiples of `STORED_BYTES`.

    `sites` are those whose kernels can read pixels with a stride, and `values` the new values of variables in NHWC.
    """
    found = {}
    for block in blocks_of(mod):
        for var in block.values:
            cut = call_of(values.get(var), "strided_slice")
            if cut is None or not isinstance(cut.args[0], relax.Var) or not (shape := static_shape(cut.args[0].ty)):
                continue
            numbers = [number for each in cut.args[1:] for number in each.fields]
            if len(numbers) != 4 or not all(isinstance(number, tirx.IntImm) for number in numbers):
                continue
            (axis, begin, end, step), size = map(int, numbers), itemsize(cut.args[0].ty.dtype)
            is_whole = all(number * size % STORED_BYTES == 0 for number in (shape[1], begin, end))
            if axis != CHANNELS_LAST or step != 1 or not is_whole or not 0 <= begin < end <= shape[1]:
                continue
            layers = [site for site in sites if site.operands[0].same_as(var)]
            sums = {site.sums for site in layers}
            casts = {each for each in block.readers(var) if sums.issuperset(_readers_of_cast(each, block))}
            others = [each for each in block.readers(var) if each not in sums | casts]
            position = Span(CHANNELS_LAST, shape[1], begin)
            found[var] = Slice(cut.args[0], position, end, [site.output for site in layers], others)
    return found


def _readers_of_cast(var: relax.Var, block: Block) -> list[relax.Var]:
    """Return the readers of a cast, which a kernel takes in; the variable itself if it is no cast."""
    return block.readers(var) if calls(block.values[var], "astype") and block.is_inner(var) else [var]


def concat_slices_of(
    mod: tvm.IRModule,
    sites: Sequence[Site],
    values: Mapping[relax.Var, relax.Expr],
    slices: Mapping[relax.Var, Slice],
) -> dict[relax.Var, ConcatSlice]:
    """Return, for the outputs that kernels store in a concat buffer, their slices of it; only `sites` can do so.

    The parts of a concat buffer are outputs of those kernels that nothing else reads, directly or through an inner
    concatenation; any other concatenation stays. In NHWC, depth to space of an output may be a part, too. There the
    first part may be the leading channels of a tensor whose other channels have no readers any more. Or pooling may
    read the first part, which `pooling_of_concat_buffers` then makes read the concat buffer.

    Before: `a = conv(x)`, `b = conv(x)`, `y = R.concat((a, b), axis=3)`.
    After: `a` of as many channels as `y` has, `y = conv(x, a)` that stores its own behind those of `a`.
    """
    layouts = {site.output: data_layout(site.described.out_layout) for site in sites if _can_be_part(site)}
    in_nhwc = {output for output, layout in layouts.items() if layout.channels == CHANNELS_LAST}
    found: dict[relax.Var, ConcatSlice] = {}
    for block in blocks_of(mod):
        index_of = {var: index for index, var in enumerate(block.values)}
        interleaved = _interleaved(block, values, in_nhwc)
        of_parts = layouts | {var: layouts[planes.source] for var, planes in interleaved.items()}
        for concat in reversed(block.values):  # outermost first: that takes the parts of the concatenations in it
            axis, parts = concat_of(values.get(concat, block.values[concat]))
            buffer, first = None, 0
            if parts and (begin := slices.get(parts[0])) is not None and not begin.position.first:
                if begin.source not in layouts:  # it may be an input, whose memory is not the network's
                    continue
                buffer, first, parts = begin.source, begin.end, parts[1:]
            parts = (
                [concat]
                if concat in interleaved
                else _parts_of_concat(parts, axis, concat, block, values, of_parts, in_nhwc)
            )
            outputs = [interleaved[part].source if part in interleaved else part for part in parts]
            if len(set(outputs)) < max(1, len(outputs)) or not found.keys().isdisjoint(outputs):
                continue
            ends = list(accumulate((int(part.ty.shape[1]) for part in parts), initial=first))
            ordered = sorted(outputs, key=index_of.__getitem__)
            if buffer is not None and not (
                ends[-1] == int(buffer.ty.shape[1])
                and _is_last_reader(buffer, concat, index_of[ordered[0]], block, slices)
            ):
                continue
            later = [index_of[output] for output in ordered if index_of[output] > index_of[outputs[0]]]
            pooled = [
                index_of[reader] for reader in block.readers(outputs[0]) if _pooling(values.get(reader)) is not None
            ]
            if later and pooled and max(pooled) > min(later):
                continue
            positions = {}
            for part, output, begins in zip(parts, outputs, ends, strict=False):
                layout = layouts[output]
                span = Span(layout.channels, ends[-1] // layout.block, begins // layout.block)
                positions[output] = _interleaved_position(interleaved[part], span) if part in interleaved else span
            for partly_filled, output in pairwise([buffer, *ordered]):
                found[output] = ConcatSlice(positions[output], partly_filled, concat, output.same_as(ordered[-1]))
    return found


def pooling_of_concat_buffers(
    mod: tvm.IRModule, values: Mapping[relax.Var, relax.Expr], concat_slices: Mapping[relax.Var, ConcatSlice]
) -> dict[relax.Var, relax.Expr]:
    """Return new values for pooling of the first parts of concat buffers: it reads these channels of the buffer.

    Before: `p = R.nn.max_pool2d(a)`, of 8 channels. After: `p = R.nn.max_pool2d(a[:, :, :, :8])`, of 16 channels.
    """
    found = {}
    for block in blocks_of(mod):
        for part in concat_slices.keys() & block.values.keys():
            for reader in block.readers(part):
                if (pool := _pooling(values.get(reader))) is not None:
                    channels = relax.op.strided_slice(part, [CHANNELS_LAST], [0], [int(part.ty.shape[1])], [1])
                    found[reader] = relax.Call(pool.op, [channels, *pool.args[1:]], pool.attrs)
    return found


def _pooling(value: relax.Expr | None) -> relax.Call | None:
    """Return the pooling that a value is; None for anything else."""
    return value if value is not None and operator_name(value) in POOLING else None


def _interleaved(
    block: Block, values: Mapping[relax.Var, relax.Expr], outputs: Set[relax.Var]
) -> dict[relax.Var, Interleaving]:
    """Return the variables that are depth to space of an output, without a cut, and channels in whole stores."""
    found = {}
    for var in values.keys() & block.values.keys():
        made = interleaving(var, block)
        if made is None or made[0].source not in outputs or block.only_reader(made[0].source) is None:
            continue
        planes, size = made[0], itemsize(var.ty.dtype)
        whole = [count * phase for count, phase in zip(planes.planes, planes.phases, strict=True)]
        if planes.groups == 1 and list(planes.shape[2:]) == whole and planes.channels * size % STORED_BYTES == 0:
            found[var] = planes
    return found


def _interleaved_position(planes: Interleaving, channels: Span) -> Interleaved:
    (height, width), (rows, across) = map(int, planes.planes), planes.phases
    return Interleaved((height, width), (rows, across), channels)


def _can_be_part(site: Site) -> bool:
    """Return whether an output has the model's shape and, in NHWC, known sizes and channels in whole stores."""
    workload, output = site.described, site.output.ty
    if not same_sizes(output, site.shaped.output_shape):
        return False
    size = workload.out_channels * workload.output_storage.itemsize
    return workload.out_layout != "NHWC" or (size % STORED_BYTES == 0 and static_shape(output) is not None)


def _parts_of_concat(
    fields: Sequence[relax.Var],
    axis: int | None,
    reader: relax.Var,
    block: Block,
    values: Mapping[relax.Var, relax.Expr],
    layouts: Mapping[relax.Var, Layout],
    pooled: Set[relax.Var],
) -> list[relax.Var]:
    """Return the parts of a concatenation, with those of inner concatenations; none where one has another reader.

    There are none, either, where a part has no layout in `layouts`. Pooling, too, may read the first part if that is
    one of `pooled`.
    """
    found: list[relax.Var] = []
    for field in fields:
        if (layout := layouts.get(field)) is not None:
            inner = [field] if layout.channels == axis else []
        else:
            inner_axis, inner_fields = concat_of(values.get(field, block.values.get(field)))
            inner = (
                _parts_of_concat(inner_fields, inner_axis, field, block, values, layouts, pooled)
                if inner_axis == axis
                else []
            )
        others = [each for each in block.readers(field) if not each.same_as(reader)]
        is_begun = field in pooled and not found and all(_pooling(values.get(each)) is not None for each in others)
        if not inner or not block.is_inner(field) or (others and not is_begun):
            return []
        found += inner
    return found


def _is_last_reader(
    buffer: relax.Var, concat: relax.Var, index: int, block: Block, slices: Mapping[relax.Var, Slice]
) -> bool:
    """Return whether a concat buffer's readers are the concat, and slices that kernels read before an index.

    Only kernels read slices without a copy. TVM may fuse its operators with later ones, after the slice is overwritten.
    """
    index_of = {var: number for number, var in enumerate(block.values)}
    found = [slices.get(each) for each in block.readers(buffer)]
    return all(
        each is not None
        and all(index_of[output] < index for output in each.layers)
        and all(other.same_as(concat) for other in each.others)
        for each in found
    )
