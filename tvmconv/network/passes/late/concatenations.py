"""Concatenations of concatenations that are one, for a GPU, where only what is computed by element reads them."""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax

from tvmconv.lowering.signatures import itemsize

from ...between.gpu.plan import VECTOR_BYTES
from ...graph.constants import sizes_of
from ...graph.graph import Block, blocks_of, calls, joined_by, rebind
from ..convolutions.layouts import BY_ELEMENT

MOST_PARTS = 64
"""The most parts of a concatenation that is made of others: each takes time when a network is built."""


def flatten_concatenations(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the parts of concatenations in the place of these where others join them with more.

    What else reads them has to be computed element by element. Where that is a single chain, as in DenseNet, TVM fuses
    it with its own concatenation, and the joined tensor is nowhere. A concatenation of which some part is not in whole
    vectors stays as it is.

    Before: `c = R.concat((a, b), axis=3)`, `y = R.nn.relu(c)`, `d = R.concat((c, y), axis=3)`.
    After: `c = R.concat((a, b), axis=3)`, `y = R.nn.relu(c)`, `d = R.concat((a, b, y), axis=3)`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        parts: dict[relax.Var, list[relax.Var]] = {}
        for var, value in block.values.items():
            axis, fields = joined_by(value)
            if axis is None:
                continue
            along = [joined_by(block.values.get(each))[0] for each in fields]
            inner = [
                parts.get(each, [each]) if own == axis else [each] for each, own in zip(fields, along, strict=True)
            ]
            found = [part for each in inner for part in each]
            if not all(_is_in_vectors(part, axis) for part in found):
                continue
            if len(found) > MOST_PARTS:
                found = fields
            if len(found) > len(fields):
                values[var] = relax.op.concat(found, axis)
            if _is_read_by_element(var, axis, block):
                parts[var] = found
    return rebind(mod, values)


def _is_in_vectors(part: relax.Var, axis: int) -> bool:
    """Return whether what memory has in a row of a part of a concatenation is whole vectors."""
    sizes = sizes_of(part.ty)
    rows = [] if sizes is None else sizes[axis + 1 :] or sizes[-1:]
    known = [size for size in rows if isinstance(size, int)]
    return 0 < len(rows) == len(known) and prod(known) * itemsize(part.ty.dtype) % VECTOR_BYTES == 0


def _is_read_by_element(var: relax.Var, axis: int, block: Block) -> bool:
    """Return whether a concatenation is read by others along its axis and by what is computed element by element."""
    readers = [block.values[reader] for reader in block.readers(var)]
    return block.is_inner(var) and all(joined_by(each)[0] == axis or calls(each, *BY_ELEMENT) for each in readers)
