"""A convolution on CUDA as a matrix product of the weight with columns of the input, made in shared memory only.

A block computes a tile of output channels (rows of the product) by pixels of all images (its columns), and a thread a
micro-tile of it in registers. The reduction goes chunk by chunk through shared memory, and the next chunks are copied
while one is used. Where the tiles are too few for the GPU, blocks share the reduction and a second kernel adds up.
"""

from __future__ import annotations

from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import COPY, MIN_BLOCKS
from tvmconv.compute.dense.tiles import Elements
from tvmconv.problem import Problem
from tvmconv.targets.devices import WARP

from .tiles import VECTOR, GemmConfig

COPY_THREADS = 256
"""The threads of a block that lays out the weight, or adds up the parts."""


def begin(definition: list[te.Tensor], problem: Problem, in_cluster: bool = False) -> Schedule:
    """Return a schedule of a definition, without any transformation.

    With open sizes, and for clusters, TVM does not check it: TVM cannot prove that whole tiles cover the pixels of a
    batch that it does not know, nor that the blocks of a cluster each read a share of each other's tiles.
    """
    return Schedule(te.create_prim_func(definition), enable_check=not (problem.open_sizes or in_cluster))


def schedule_gemm(problem: Problem, config: GemmConfig, elements: Elements) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    tile = (config.block_m, config.block_n, config.block_c)
    workload = compute.with_open_sizes(problem)
    sch = begin(compute.implicit_gemm(workload, tile, config.split_k, elements), problem)
    pad, columns, weight, accumulate, result, planes, output = (
        sch.get_sblock(name) for name in ("pad", "columns", "packed", "product", "sums", "planes", "output")
    )
    sch.compute_inline(pad)

    # Step 1. What a block computes goes through registers to the output, or to a kernel that adds up the parts
    sch.set_scope(accumulate, 0, "local")
    if config.split_k > 1:
        sch.compute_at(planes, spread_over_grid(sch, output), preserve_unit_loops=True)
        sch.set_scope(planes, 0, "local")
    else:
        sch.compute_inline(planes)
        sch.reverse_compute_inline(output)
    part, g, m, p = sch.get_loops(result)

    # Step 2. Tile the output: blocks, vthreads (strided), warps, the lanes of a warp, then what a thread owns
    bn, vn, tn, ni = sch.split(p, [None, config.vthreads_n, config.threads_n, config.thread_n])
    bm, vm, tm, mi = sch.split(m, [None, config.vthreads_m, config.threads_m, config.thread_m])
    wm, lm = sch.split(tm, [None, config.lanes_m])
    wn, ln = sch.split(tn, [None, WARP // config.lanes_m])
    sch.reorder(part, bn, g, bm, vm, vn, wm, wn, lm, ln, mi, ni)
    sch.bind(sch.fuse(bn, g, bm), "blockIdx.x")  # blocks that read the same input run side by side
    sch.bind(part, "blockIdx.y")
    sch.bind(vm, "vthread.y")
    sch.bind(vn, "vthread.x")
    thread = sch.fuse(wm, wn, lm, ln)
    sch.bind(thread, "threadIdx.x")
    if config.min_blocks_per_sm > 1:
        sch.annotate(thread, MIN_BLOCKS, config.min_blocks_per_sm)

    # Step 3. Accumulate in registers, chunk by chunk
    sch.compute_at(accumulate, thread, preserve_unit_loops=True)
    *_, mi, ni, c, r, s = sch.get_loops(accumulate)
    co, ci = sch.split(c, [None, config.block_c])
    ro, ri = sch.split(r, [None, config.block_r])
    so, si = sch.split(s, [None, config.block_s])
    sch.reorder(co, ro, so, ci, ri, si, mi, ni)
    chunk, term = sch.fuse(co, ro, so), sch.fuse(ci, ri, si)
    for loop in (term, mi, ni):
        sch.unroll(loop)

    # Step 4. Stage each chunk in shared memory, where the columns of pixels are made, with padding
    if config.packed:
        spread_over_grid(sch, weight)
        weight = sch.cache_read(accumulate, 0, "shared")
    sch.set_scope(weight, 0, "shared")
    sch.set_scope(columns, 0, "shared")
    for stage in (weight, columns):
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
    copied = sch.get_loops(weight)[-5:]
    if not config.packed:
        # In memory the weight is contiguous along the terms: rows four banks apart store these without conflicts.
        copied = [copied[-1], *copied[:-1]]
        sch.reorder(*copied)
        sch.storage_align(weight, 0, -2, WARP, VECTOR)
    _spread(sch, copied, config.threads, config.load)
    _spread(sch, sch.get_loops(columns)[-5:], config.threads, 1)
    sch.decompose_reduction(accumulate, chunk)
    _pipeline(sch, config, chunk, weight, columns)

    # Step 5. Store
    *_, mi, ni = sch.get_loops(result)
    sch.unroll(mi)
    if config.store > 1:
        ni, lanes = sch.split(ni, [None, config.store])
        sch.vectorize(lanes)
    sch.unroll(ni)
    return sch


def _pipeline(sch: Schedule, config: GemmConfig, chunk: LoopRV, *stages: SBlockRV) -> None:
    """Copy chunks while another is computed: with cp.async, or through registers into the other buffer of two."""
    if config.num_stages == 1:
        return
    if config.asynchronous:
        sch.annotate(chunk, "software_pipeline_stage", [0, 0, config.num_stages - 1])
        sch.annotate(chunk, "software_pipeline_order", [0, 1, 2])
        sch.annotate(chunk, "software_pipeline_async_stages", [0])
    else:
        for stage in stages:
            sch.annotate(stage, "tirx.manifest_shared_memory_local_stage", 1)
            sch.annotate(stage, "double_buffer_scope", 0)
        # Load, load, compute, store, store: the loads have all of the computation to arrive in.
        sch.annotate(chunk, "software_pipeline_stage", [0, 0, 0, 0, 1])
        sch.annotate(chunk, "software_pipeline_order", [0, 3, 1, 4, 2])


def spread_over_grid(sch: Schedule, stage: SBlockRV) -> LoopRV:
    """Make a stage a separate kernel, with an element for each thread; return the loop of threads."""
    return bind_to_grid(sch, sch.get_loops(stage), COPY_THREADS)


def bind_to_grid(sch: Schedule, loops: list[LoopRV], threads: int) -> LoopRV:
    """Distribute loops over blocks of `threads` threads; return the loop of threads."""
    block, thread = sch.split(sch.fuse(*loops), [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _spread(sch: Schedule, loops: list[LoopRV], threads: int, vector: int) -> None:
    """Distribute the vectors of a copy over threads, neighbouring vectors to neighbouring threads."""
    _, thread, lanes = sch.split(sch.fuse(*loops), [None, threads, vector])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)


def copy_asynchronously(sch: Schedule, stage: SBlockRV, threads: int, permuted: bool, around: int = 0) -> SBlockRV:
    """Distribute the vectors of a stage over threads, as asynchronous copies; return the block of a vector.

    With `permuted` the vectors of rows are swizzled. The first `around` dimensions of the stage stay loops around the
    copies, and in each iteration of these the vectors begin with the first thread.
    """
    dimensions = len(sch.get(stage).iter_vars)  # the loops that `compute_at` has made
    *loops, lane = sch.get_loops(stage)[-dimensions:]
    _, thread = sch.split(sch.fuse(*loops[around:]), [None, threads])
    sch.bind(thread, "threadIdx.x")
    copy = sch.blockize(lane)
    sch.annotate(copy, COPY, permuted)
    return copy
