"""Buffers of a scheduled function: regions as operands of CUDA functions, and replacement of buffers in statements."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, TensorRegion
from tvm.s_tir.stmt import MatchBufferRegion

Replacements = dict[Any, tuple[Any, list[int]]]
"""For each buffer the one that replaces it, and the axes on which `with_buffers` sets the index."""


def with_buffers(stmt: tirx.Stmt, replacements: Replacements, last_index: Any) -> tirx.Stmt:
    """Return a statement with buffers replaced: at index 0 on the given axes, except `last_index` on the last of these.

    There the index is 0 too, where the new buffer has a single element along that axis.
    """

    def replaced_index(buffer: Any, indices: Any) -> tuple[Any, list[Any]]:
        fresh, axes = replacements[buffer]
        which = {axis: tirx.const(0, "int32") for axis in axes}
        which |= {axis: last_index for axis in axes[-1:] if int(fresh.ty.shape[axis]) > 1}
        return fresh, [which.get(axis, index) for axis, index in enumerate(indices)]

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if store.buffer not in replacements:
            return store
        buffer, indices = replaced_index(store.buffer, store.indices)
        return tirx.BufferStore(buffer, store.value, indices)

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        if load.source not in replacements:
            return load
        buffer, indices = replaced_index(load.source, load.indices)
        return buffer[tuple(indices)]

    def covered(region: TensorRegion) -> TensorRegion:
        if region.source not in replacements:
            return region
        buffer, indices = replaced_index(region.source, region.region)
        ranges = [each if isinstance(each, tvm.ir.Range) else tvm.ir.Range.from_min_extent(each, 1) for each in indices]
        return TensorRegion(buffer, ranges, region.ty)

    return tvm_ffi.structural_map(stmt, [(tirx.BufferStore, stored), (TensorLoad, loaded), (TensorRegion, covered)])


class Operand:
    """A region of shared memory or registers that a CUDA function reads or writes; the function gets its address.

    TVM's pass ThreadSync ignores the access, since a ring has its own barriers, unless `access` is "w": a write that
    the pass puts barriers around.
    """

    def __init__(self, region: TensorRegion, access: str | int = 0) -> None:
        whole = region.source
        extents = [each.extent for each in region.region]
        part = tirx.decl_buffer(extents, whole.ty.dtype, f"{whole.name}_part", scope=whole.scope(), offset_factor=1)
        self.match = MatchBufferRegion(part, region)
        self.pointer = part.access_ptr(access)
