"""Tiles of AMX: calls of LLVM functions that replace the plain summation loops of a scheduled function for a CPU.

A schedule is complete without them; this pass inserts them where its annotations say so.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorRegion
from tvm.s_tir.stmt import MatchBufferRegion, SBlock, SBlockRealize

from tvmconv.compute.annotations import TILE_PRODUCT, TILE_TASK, TileProduct

REFUSED = (
    "Linux gives this process no tiles of AMX (arch_prctl ARCH_REQ_XCOMP_PERM): the CPU has none or a virtual machine "
    "hides them, the kernel is older than 5.16, or a thread's stack for signals is too small. Build for a target with "
    "the mattr -amx-tile"
)


def with_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function whose annotated blocks call functions for AMX; one without annotations as it is.

    Before: `for task in T.parallel(...): ... for y, x, k, c, r, s, ...: sums[y, x, k] += a[...] * b[...] ...`.
    After: `assert request() == 0`, and `for task in T.parallel(...): begin() ... product(sums, a, b, ...) ... end()`.
    """
    requested: list[Any] = []

    def task(loop: tirx.For) -> tirx.For:
        if TILE_TASK not in loop.annotations:
            return loop
        annotations = dict(loop.annotations)
        code, request, begin, end = annotations.pop(TILE_TASK)
        requested[:] = code, request
        body = tirx.SeqStmt([_call(begin), loop.body, _call(end)])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, annotations)

    func = tvm_ffi.structural_map(func, (SBlock, _multiplied))
    func = tvm_ffi.structural_map(func, (tirx.For, task))
    if not requested:
        return func
    code, request = requested
    root = func.body.block
    granted = tirx.call_extern("int32", request) == 0
    test = tirx.AssertStmt(granted, tvm.ir.StringImm("RuntimeError"), [tvm.ir.StringImm(REFUSED)])
    body = tirx.AttrStmt(0, "pragma_import_llvm", code, tirx.SeqStmt([test, root.body]))
    block = SBlock([], [], [], root.name_hint, body, alloc_buffers=root.alloc_buffers, match_buffers=root.match_buffers)
    return func.with_body(SBlockRealize([], True, block))


def _multiplied(block: SBlock) -> SBlock:
    """Return a block annotated with `TILE_PRODUCT` with a call of its function instead of its loops."""
    if TILE_PRODUCT not in block.annotations:
        return block
    product = TileProduct.from_list(block.annotations[TILE_PRODUCT])
    (written,), (first, second) = block.writes, block.reads
    sums, a, b = _Strided(written), _Strided(first), _Strided(second)
    arguments = [
        *(sums.pointer, sums.bytes(*product.sum_tile), sums.bytes(*product.sum_pixel)),
        *(a.pointer, *(a.bytes(*each) for each in (product.tile, product.pixel))),
        *(a.bytes(*each) for each in (product.chunk, product.row, product.column)),
        *(b.pointer, b.bytes(3, 1)),
        *(tirx.const(each, "int64") for each in (product.chunks, product.rows, product.columns)),
    ]
    matches = [each.match for each in (sums, a, b)]
    call = _call(product.name, *arguments)
    return SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, call, match_buffers=matches)


class _Strided:
    """A region of an array, the address of its start, and its strides."""

    def __init__(self, region: TensorRegion) -> None:
        whole = region.source
        self.strides = [tvm.ir.Var(f"{whole.name}_stride{axis}", "int32") for axis in range(len(region.region))]
        self._itemsize = tvm.DataType(str(whole.ty.dtype)).itemsize
        extents = [each.extent for each in region.region]
        part = tirx.decl_buffer(
            extents, whole.ty.dtype, f"{whole.name}_part", strides=self.strides, offset_factor=1, data_alignment=1
        )
        self.match = MatchBufferRegion(part, region)
        self.pointer = tirx.address_of(part[tuple([0] * len(extents))])

    def bytes(self, axis: int, elements: int) -> tirx.PrimExpr:
        """Return the bytes from an element to the one that is `elements` further along an axis."""
        return tirx.Cast("int64", self.strides[axis] * (int(elements) * self._itemsize))


def _call(name: str, *arguments: Any) -> tirx.Evaluate:
    return tirx.Evaluate(tirx.call_extern("void", name, *arguments))
