"""Buffers of a scheduled function: their regions as operands of CUDA functions, and statements that move to others."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, TensorRegion
from tvm.s_tir.stmt import MatchBufferRegion

Places = dict[Any, tuple[Any, list[int]]]
"""Buffers that take the place of others, and axes of those."""


def moved(stmt: tirx.Stmt, places: Places, last: Any) -> tirx.Stmt:
    """Return a statement with buffers in place of others, at index 0 on some axes and at a given one on the last.

    The last one is 0 too where the buffer has a single place on that axis.
    """

    def place_of(buffer: Any, indices: Any) -> tuple[Any, list[Any]]:
        fresh, axes = places[buffer]
        which = {axis: tirx.const(0, "int32") for axis in axes}
        which |= {axis: last for axis in axes[-1:] if int(fresh.ty.shape[axis]) > 1}
        return fresh, [which.get(axis, index) for axis, index in enumerate(indices)]

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if store.buffer not in places:
            return store
        buffer, indices = place_of(store.buffer, store.indices)
        return tirx.BufferStore(buffer, store.value, indices)

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        if load.source not in places:
            return load
        buffer, indices = place_of(load.source, load.indices)
        return buffer[tuple(indices)]

    def covered(region: TensorRegion) -> TensorRegion:
        if region.source not in places:
            return region
        buffer, indices = place_of(region.source, region.region)
        ranges = [each if isinstance(each, tvm.ir.Range) else tvm.ir.Range.from_min_extent(each, 1) for each in indices]
        return TensorRegion(buffer, ranges, region.ty)

    return tvm_ffi.structural_map(stmt, [(tirx.BufferStore, stored), (TensorLoad, loaded), (TensorRegion, covered)])


class Operand:
    """A region of shared memory or registers that a function reads or writes, which gets the address of its start.

    ThreadSync does not look at the access, as a ring has barriers of its own, unless it is "w": a write that it puts
    barriers around.
    """

    def __init__(self, region: TensorRegion, access: str | int = 0) -> None:
        whole = region.source
        extents = [each.extent for each in region.region]
        part = tirx.decl_buffer(extents, whole.ty.dtype, f"{whole.name}_part", scope=whole.scope(), offset_factor=1)
        self.match = MatchBufferRegion(part, region)
        self.pointer = part.access_ptr(access)
