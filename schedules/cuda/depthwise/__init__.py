"""Depthwise convolution on CUDA: a block computes one tile of one or several output planes.

The schedule of the TVM depthwise tutorial (blocking, thread and vthread counts, shared memory, fused epilogue), written
for s_tir, with padding resolved while the input tile is staged and several small planes in one block.

On an H100 in float32 it takes, tuned, as long as a copy of the same bytes for large planes with 3x3 kernels, up to 1.25
times as long for most others, and 1.45 times for the largest kernels (benchmarks/depthwise-h100.json).
"""

from __future__ import annotations

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.problem import Problem

from ...template import Layouts
from .default import default_config
from .model import ablations, estimate, features, obstacle, space
from .tiles import LEAST, Config

__all__ = [
    "LAYOUTS",
    "LEAST",
    "OPEN_SIZES",
    "VERSION",
    "Config",
    "ablations",
    "default_config",
    "estimate",
    "features",
    "obstacle",
    "schedule",
    "space",
]

VERSION = 1

LAYOUTS = Layouts()

OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    tile = (config.block_y, config.block_x)
    lanes = 1 if config.flat else config.load
    sch = Schedule(te.create_prim_func(compute.depthwise(compute.with_open_sizes(problem), tile, lanes)))
    pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "depthwise", "output"))
    # Of an open plane TVM cannot tell how much of the residual, the last operand, a tile reads.
    end = len(sch.get(output).reads) - (problem.has_open_planes and problem.workload.epilogue.residual)
    vectors = [sch.cache_read(output, operand, "local") for operand in range(1, end)]
    copies = (sch.cache_read(pad, 0, "shared"), sch.cache_write(output, 0, "shared")) if config.flat else None
    store = sch.cache_write(output, 0, "local") if config.store > 1 and not config.flat else output

    # Step 1. Tile the output: blocks, vthreads (strided), threads, then what a thread owns
    n, k, y, x = sch.get_loops(store)
    bk, tz, ki = sch.split(k, [None, config.threads_z, config.siblings])
    by, vy, ty, yi = sch.split(y, [None, config.vthreads_y, config.threads_y, config.thread_y])
    bx, vx, tx, xi = sch.split(x, [None, config.vthreads_x, config.threads_x, config.thread_x])
    sch.reorder(n, bk, by, bx, vy, vx, tz, ty, tx, ki, yi, xi)
    # Only blockIdx.x is wide enough for every batch and channel count. A number of tiles that is known only when the
    # kernel runs has an axis of its own: TVM cannot tell what a block stages where its place comes from a division.
    axes = (sch.fuse(n, bk), by, bx) if problem.has_open_planes else (sch.fuse(n, bk, by, bx),)
    for axis, name in zip(axes, ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
        sch.bind(axis, name)
    block = axes[-1]
    sch.bind(vy, "vthread.y")
    sch.bind(vx, "vthread.x")

    # Step 2. Accumulate in registers; the epilogue follows in the same thread, and stores vectors
    if store != output:
        xi, vector = sch.split(xi, [None, config.store])
        sch.compute_at(output, xi, preserve_unit_loops=True)
        sch.unroll(sch.get_loops(output)[-1])
        sch.vectorize(vector)
    for loop in (ki, yi, xi):
        sch.unroll(loop)
    sch.compute_at(accumulate, tx, preserve_unit_loops=True)
    sch.set_scope(accumulate, 0, "local")

    # What the epilogue reads comes first: the end of the kernel is too late to begin waiting for it.
    for vector in vectors:
        sch.compute_at(vector, tx, preserve_unit_loops=True, index=0)

    # Step 3. Stage the input, with the padding resolved on the way
    if config.shared_input or config.unroll == 2:  # registers have no addresses: only unrolled taps can read them
        sch.compute_at(pad, block if config.shared_input else tx, preserve_unit_loops=True)
        sch.set_scope(pad, 0, "shared" if config.shared_input else "local")
        plane, row, column, *lane = sch.get_loops(pad)[-4 if lanes > 1 else -3 :]
        if config.shared_input:
            rows = sch.fuse(plane, row)
            steps_y, wz, wy = sch.split(rows, [None, config.threads_z, config.threads_y])
            steps_x, wx = sch.split(column, [None, config.threads_x])
            sch.reorder(steps_y, steps_x, wz, wy, wx)
            _bind_threads(sch, config, wz, wy, wx)
        else:
            for loop in (plane, row, column):
                sch.unroll(loop)
        for loop in lane:
            sch.vectorize(loop)
    else:
        sch.compute_inline(pad)
    if copies is not None:
        copy_in, copy_out = copies
        sch.compute_at(copy_in, block, preserve_unit_loops=True)
        sch.reverse_compute_at(copy_out, block, preserve_unit_loops=True)
        _spread_over_threads(sch, copy_in, config, config.load)
        _spread_over_threads(sch, copy_out, config, config.store)

    # Step 4. Stage the filter
    if config.shared_filter:
        taps = sch.cache_read(accumulate, 1, "shared")
        sch.compute_at(taps, block, preserve_unit_loops=True)
        _spread_over_threads(sch, taps, config, 1)

    _bind_threads(sch, config, tz, ty, tx)

    # Step 5. Taps outside, the thread's outputs inside, and as much of it straight-line as asked for
    ni, ki, yi, xi, r, s = sch.get_loops(accumulate)[-6:]
    sch.reorder(ni, r, s, ki, yi, xi)
    for loop in (ki, yi, xi, *((), (s,), (r, s))[config.unroll]):
        sch.unroll(loop)
    sch.decompose_reduction(accumulate, r)
    return sch


def _spread_over_threads(sch: Schedule, copy: SBlockRV, config: Config, vector: int) -> None:
    """Give vector after vector of a block's copy to thread after thread."""
    *outer, column = sch.get_loops(copy)[-4:]
    column, lane = sch.split(column, [None, vector])
    elements = sch.fuse(*outer, column)
    _, z, y, x = sch.split(elements, [None, config.threads_z, config.threads_y, config.threads_x])
    _bind_threads(sch, config, z, y, x)
    sch.vectorize(lane)


def _bind_threads(sch: Schedule, config: Config, z: LoopRV, y: LoopRV, x: LoopRV) -> None:
    """Bind three loops to threads; to one dimension where planes are flat, so that TVM sees they are contiguous."""
    loops = (sch.fuse(z, y, x),) if config.flat else (x, y, z)
    for loop, thread in zip(loops, ("threadIdx.x", "threadIdx.y", "threadIdx.z"), strict=False):
        sch.bind(loop, thread)
