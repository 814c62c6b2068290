"""Concatenations of channels in NHWC that cost nothing: kernels store their output in the joined tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import tvm
from tvm import relax

from ..lowering import Columns
from .constants import static_shape
from .graph import Block, blocks_of, call_of
from .sites import Site

CHANNELS_LAST = 3
"""The axis of channels in NHWC."""

STORED_BYTES = 16
"""The bytes of a store of a kernel, of which the channels of each part have to be a multiple."""


class Joint(NamedTuple):
    """The place of a kernel's output in a joined tensor."""

    columns: Columns
    """Its channels there."""
    before: relax.Var | None
    """The part that is stored there just before it; None for the first one, whose kernel gets memory for the whole."""
    whole: relax.Var
    """The variable that holds the joined tensor."""
    is_last: bool
    """True if the whole is there once this part is."""


def joints_of(
    mod: tvm.IRModule, sites: Sequence[Site], values: Mapping[relax.Var, relax.Expr]
) -> dict[relax.Var, Joint]:
    """Return the places of outputs in joined tensors, by their variables, given the sites whose kernels have rows.

    The parts of such a tensor are outputs of those kernels that nothing else reads, perhaps joined before; others stay
    concatenations. `values` are the new ones of variables in NHWC.

    Before: `a = conv(x)`, `b = conv(x)`, `y = R.concat((a, b), axis=3)`.
    After: `a` of as many channels as `y` has, `y = conv(x, a)` that stores its own behind those of `a`.
    """
    outputs = {site.output for site in sites if _is_in_stores(site)}
    found: dict[relax.Var, Joint] = {}
    for block in blocks_of(mod):
        for whole in reversed(block.values):  # the outermost first: what is a part of it has nothing to join any more
            parts = _parts(whole, block, values, outputs)
            if len(set(parts)) < max(1, len(parts)) or not found.keys().isdisjoint(parts):
                continue
            ends = list(accumulate((int(part.ty.shape[1]) for part in parts), initial=0))
            places = {part: Columns(ends[-1], first) for part, first in zip(parts, ends, strict=False)}
            ordered = [var for var in block.values if var in places]
            for before, part in pairwise([None, *ordered]):
                found[part] = Joint(places[part], before, whole, part.same_as(ordered[-1]))
    return found


def _is_in_stores(site: Site) -> bool:
    """Return whether an output is in NHWC, of known sizes, with pixels of whole stores."""
    workload = site.described
    size = workload.out_channels * workload.output_storage.itemsize
    is_known = static_shape(site.output.ty) == workload.in_nchw().output_shape
    return workload.out_layout == "NHWC" and size % STORED_BYTES == 0 and is_known


def _parts(
    var: relax.Var, block: Block, values: Mapping[relax.Var, relax.Expr], outputs: set[relax.Var]
) -> list[relax.Var]:
    """Return the outputs that a concatenation in NHWC joins, in their order; none where a part is anything else."""
    concat = call_of(values.get(var), "concat")
    if concat is None or int(concat.attrs.axis) != CHANNELS_LAST:
        return []
    found: list[relax.Var] = []
    for field in concat.args[0].fields:
        inner = [field] if field in outputs else _parts(field, block, values, outputs)
        if block.only_reader(field) is None or not inner:
            return []
        found += inner
    return found
