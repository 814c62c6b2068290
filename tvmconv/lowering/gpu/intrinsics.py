"""Tensor intrinsics: CUDA functions that replace blocks of a scheduled function, and the ring that feeds them.

A schedule for tensor cores is complete without them, as plain loops over shared memory and registers; these passes put
asynchronous copies, instructions of tensor cores and barriers where its annotations say so.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.compute.annotations import CLUSTER_AXIS, COPY, FETCH, MATRICES, PRODUCT, RING, STORE
from tvmconv.compute.statements import COPIES, cuda_call
from tvmconv.compute.substitution import substitute
from tvmconv.targets.device_code import function, included

from .buffers import Operand
from .specialization import specialized

WGMMA, CLUSTERS = (included(f"lowering/gpu/{name}.cuh") for name in ("wgmma", "clusters"))
"""The sources of a ring of copies for `wgmma`, and of clusters."""


def with_intrinsics(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function with its annotated blocks and loops replaced; one without annotations as it is.

    Before: a loop over chunks with copies and a product. After: the same loop, in the software pipeline of TVM, with
    calls of CUDA functions in the blocks, and commits, waits and barriers between them.
    """
    func = tvm_ffi.structural_map(specialized(func), (SBlock, _with_function))
    func = tvm_ffi.structural_map(func, (tirx.For, _ring))
    return _with_clusters(func)


def _with_clusters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function whose blocks each store one part of a tile, and fetch the parts of other blocks in the cluster.

    Before: `tile[part, ...] = sum`, in a loop `share` of the cluster `total[part] = tile[part, ...]`, for all parts.
    After: `tile[0, ...] = sum`, a barrier, in the loop `fetch(&total[part], &tile[0, ...], part)`, and a barrier, since
    a block that ends gives its shared memory back.
    """
    shared: list[Any] = []

    def fetched(loop: tirx.For) -> tirx.Stmt:
        if FETCH not in loop.annotations:
            return loop
        block, count = loop.body.block, int(loop.extent)
        (read,), (written,) = block.reads, block.writes
        shared.append(read.source)
        rank, *first_index = (each.min for each in read.region)
        several = tvm.ir.Range.from_min_extent(written.region[-1].min, count)
        written = TensorRegion(written.source, [*list(written.region)[:-1], several], written.ty)
        target, first_index = Operand(written), [tirx.const(0, "int32"), *first_index]
        # TVM lets sums share the memory of factors of another type, of which `access_ptr` knows nothing.
        source = tirx.address_of(read.source[tuple(first_index)])
        call = cuda_call(function("fetch", count), CLUSTERS, target.pointer, source, rank)
        whole = SBlock(
            block.iter_vars, [_at_first_index(read)], [written], block.name_hint, call, match_buffers=[target.match]
        )
        values = [substitute(value, {loop.loop_var: loop.min}) for value in loop.body.iter_values]
        return SBlockRealize(values, loop.body.predicate, whole)

    func = tvm_ffi.structural_map(func, (tirx.For, fetched))
    if not shared:
        return func

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if not any(store.buffer.same_as(each) for each in shared):
            return store
        return tirx.BufferStore(store.buffer, store.value, [tirx.const(0, "int32"), *store.indices[1:]])

    def written(block: SBlock) -> SBlock:
        if not any(region.source.same_as(each) for region in block.writes for each in shared):
            return block
        writes = [_at_first_index(region) for region in block.writes]
        return SBlock(
            *(block.iter_vars, block.reads, writes, block.name_hint, block.body, block.init),
            *(block.alloc_buffers, block.match_buffers, block.annotations),
        )

    def between_barriers(loop: tirx.For) -> tirx.Stmt:
        if loop.thread_binding is None or loop.thread_binding.thread_tag != CLUSTER_AXIS:
            return loop
        barrier = cuda_call(function("cluster_barrier"), CLUSTERS)
        return tirx.SeqStmt([barrier, loop, barrier])

    func = tvm_ffi.structural_map(func, (tirx.BufferStore, stored))
    func = tvm_ffi.structural_map(func, (SBlock, written))
    return tvm_ffi.structural_map(func, (tirx.For, between_barriers))


def _at_first_index(region: TensorRegion) -> TensorRegion:
    """Return a region at index 0 of its first axis, where a block stores its part."""
    first = tvm.ir.Range.from_min_extent(tirx.const(0, "int32"), 1)
    return TensorRegion(region.source, [first, *list(region.region)[1:]], region.ty)


def _with_function(block: SBlock) -> SBlock:
    if COPY in block.annotations:
        return _copied(block)
    if PRODUCT in block.annotations:
        name, source, *whole = block.annotations[PRODUCT]
        (sums,) = block.writes
        factors = [region for region in block.reads if not region.source.same_as(sums.source)]
        if whole:
            factors = [_whole(region, int(whole[0])) for region in factors]
            block = SBlock(block.iter_vars, [sums, *factors], [sums], block.name_hint, block.body)
        operands = [Operand(region) for region in (sums, *factors)]
        return _replaced(block, operands, cuda_call(str(name), str(source), *(operand.pointer for operand in operands)))
    if MATRICES in block.annotations:
        name, source = block.annotations[MATRICES]
        (tile,), (registers,) = block.writes, block.reads
        operands = [Operand(tile, "w"), Operand(registers)]
        call = cuda_call(str(name), str(source), *(operand.pointer for operand in operands))
        return _replaced(block, operands, call, _block_of(block.body).block.annotations)
    if STORE in block.annotations:
        name, source = block.annotations[STORE]
        (output,), (staged,) = block.writes, [Operand(region) for region in block.reads]
        image, *others = (each.min for each in output.region)
        following = image + min(1, int(output.region[0].extent) - 1)
        indices = (image, *others), (following, *others)
        addresses = [tirx.address_of(output.source[index]) for index in indices]
        return _replaced(block, [staged], cuda_call(str(name), str(source), *addresses, staged.pointer))
    return block


def _whole(region: TensorRegion, count: int) -> TensorRegion:
    """Return a region extended to the whole of its last `count` dimensions."""
    shape = region.source.ty.shape[-count:]
    ranges = [tvm.ir.Range.from_min_extent(tirx.const(0, "int32"), extent) for extent in shape]
    return TensorRegion(region.source, [*list(region.region)[:-count], *ranges], region.ty)


def _replaced(block: SBlock, operands: list[Operand], body: tirx.Stmt, annotations: Any = None) -> SBlock:
    matches, unchanged = [operand.match for operand in operands], (block.iter_vars, block.reads, block.writes)
    return SBlock(*unchanged, block.name_hint, body, match_buffers=matches, annotations=annotations)


def _copied(block: SBlock) -> SBlock:
    """Return the block with an asynchronous copy instead of its loop over neighbouring elements.

    A block that stores nothing but padding stays as it is.

    Rows of eight vectors may be swizzled: vector v of a row is stored at index v ^ r, where r is the row's number in
    its group of eight. So one vector of eight rows is in different banks, in the order in which tensor cores read it.
    """
    loop = block.body
    realize = loop.body
    inner = {each.var: value for each, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    inner_first = {var: substitute(value, {loop.loop_var: loop.min}) for var, value in inner.items()}
    store = substitute(realize.block.body, inner_first)
    value, inside = store.value, tirx.const(True, "bool")
    if isinstance(value, tvm.ir.Call):
        inside, value, _ = value.args
    if not isinstance(value, TensorLoad):  # nothing but padding, whatever the pixel: zeros in any order
        return block
    *outer, row, copy, _ = store.indices
    (written,) = block.writes
    vector = copy ^ row if block.annotations[COPY] else copy
    ranges = [tvm.ir.Range.from_min_extent(index, 1) for index in (*outer, row, vector)]
    target = Operand(TensorRegion(written.source, [*ranges, written.region[-1]], written.ty))
    source = tirx.address_of(value.source[tuple(value.indices)])
    count = int(loop.extent) * tvm.DataType(written.source.ty.dtype).itemsize
    call = cuda_call(function("copy", count), COPIES, target.pointer, source, _all_of(inside))
    return _replaced(block, [target], call, realize.block.annotations)


def _all_of(condition: Any) -> Any:
    """Return a condition as an integer that is computed without branches, where `&&` would skip its second operand."""
    if isinstance(condition, tirx.And):
        return _all_of(condition.a) & _all_of(condition.b)
    return condition.astype("int32")


def _ring(loop: tirx.For) -> tirx.Stmt:
    """Return a loop over chunks as a ring of buffers: one barrier for each chunk, after which an older buffer is free.

    With asynchronous products an iteration waits for its chunk, begins the product, waits for the previous product, and
    copies a chunk to the buffer of that one's factors. Else it copies first, since the previous product is complete. A
    single chunk is copied, waited for and multiplied.
    """
    if RING not in loop.annotations:
        return loop
    ahead, wgmma, is_asynchronous = (int(value) for value in loop.annotations[RING])
    *copies, product = loop.body.seq
    left = loop.extent - 1 - loop.loop_var
    commit = _opaque("commit", cuda_call(function("commit"), COPIES))
    name, source = ("ready_for_wgmma", WGMMA) if wgmma else ("ready", COPIES)
    ready = _opaque("ready", cuda_call(function(name), source, tirx.min(max(0, ahead - 1), left)))
    parts = [*copies, commit, ready, product]
    if not ahead:
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(parts))
    stages = [0] * len(copies) + [0, ahead, ahead]
    order = [*range(1, len(copies) + 2), 0, len(copies) + 2]
    if is_asynchronous:
        done = _opaque("done", cuda_call(function("done"), WGMMA, tirx.min(1, left)), _block_of(product))
        parts.append(done)
        stages.append(ahead + 1)
        order = [*range(3, len(copies) + 4), 0, 1, 2]
    annotations = {"software_pipeline_stage": stages, "software_pipeline_order": order}
    ring = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(parts), None, annotations)
    return tirx.SeqStmt([ring, cuda_call(function("barrier"), COPIES)])


def _block_of(stmt: tirx.Stmt) -> SBlockRealize:
    while not isinstance(stmt, SBlockRealize):
        stmt = stmt.body
    return stmt


def _opaque(name: str, body: tirx.Stmt, like: SBlockRealize | None = None) -> SBlockRealize:
    """Return a block around a statement, with the reads and writes of the block `like`, or none."""
    reads, writes = [], []
    if like is not None:
        bound = {each.var: value for each, value in zip(like.block.iter_vars, like.iter_values, strict=True)}
        reads = [substitute(region, bound) for region in like.block.reads]
        writes = [substitute(region, bound) for region in like.block.writes]
    return SBlockRealize([], tirx.const(True, "bool"), SBlock([], reads, writes, name, body))
