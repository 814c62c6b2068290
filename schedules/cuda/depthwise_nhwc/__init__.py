"""Depthwise convolution in NHWC on CUDA: a thread computes a tile of pixels of a few neighbouring channels.

Neighbouring threads have neighbouring channels, so that a warp reads and writes whole lines. A thread goes down the
rows of its input once: each element is loaded, converted and put among zeros once, and added to all sums that it is a
term of, which stay in registers. What tiles side by side read twice comes from the caches. The taps are in shared
memory, by channels and in the type of sums; there is no kernel beside this one.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.problem import Problem

from ...template import Layouts
from ..gemm.schedule import begin
from .model import ablations, default_config, estimate, features, obstacle, space
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

LAYOUTS = Layouts(x=("NHWC",), output=("NHWC",))

OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    tile, thread = (config.block_y, config.block_x), (config.thread_y, config.thread_x)
    sch = begin(compute.depthwise_rows(compute.with_open_sizes(problem), tile, thread), problem)
    nearest, wide, pad, taps, accumulate, sums, output = (
        sch.get_sblock(name) for name in ("nearest", "wide", "pad", "taps", "depthwise", "sums", "output")
    )
    sch.compute_inline(sums)
    operands = [sch.cache_read(output, operand, "local") for operand in range(1, len(sch.get(output).reads))]
    store = sch.cache_write(output, 0, "local")

    # Step 1. Tile the output: blocks, threads, then what a thread owns
    n, y, x, k = sch.get_loops(store)
    by, ty, yi = sch.split(y, [None, config.threads_y, config.thread_y])
    bx, tx, xi = sch.split(x, [None, config.threads_x, config.thread_x])
    bk, tk, lane = sch.split(k, [None, config.threads_c, config.vector])
    blocks = (n, bk, by, bx) if problem.has_open_planes else (n, by, bx, bk)
    sch.reorder(*blocks, ty, tx, tk, yi, xi, lane)
    # TVM cannot tell what a block reads where its place comes from a division by a number of tiles.
    axes = (sch.fuse(n, bk), by, bx) if problem.has_open_planes else (sch.fuse(*blocks),)
    for axis, name in zip(axes, ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
        sch.bind(axis, name)
    block = axes[-1]
    _bind_threads(sch, ty, tx, tk)

    # Step 2. The epilogue, a vector at a time
    for loop in (yi, xi):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.compute_at(output, xi, preserve_unit_loops=True)
    sch.unroll(sch.get_loops(output)[-1])
    for operand in operands:  # scale and shift are the same for all pixels
        of_pixels = len(sch.get(operand).iter_vars) > 1
        sch.compute_at(operand, xi if of_pixels else tk, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(operand)[-1])

    # Step 3. Add up row by row of the input
    sch.compute_at(accumulate, tk, preserve_unit_loops=True)
    sch.set_scope(accumulate, 0, "local")
    yi, xi, lane, row, s = sch.get_loops(accumulate)[-5:]
    sch.reorder(row, s, yi, xi, lane)
    for loop in (row, s, yi, xi, lane):
        sch.unroll(loop)
    for stage, place in ((pad, row), (wide, row), (nearest, tk if config.ahead else row)):
        sch.compute_at(stage, place, preserve_unit_loops=True)
        sch.set_scope(stage, 0, "local")
        *_, rows, columns, lane = sch.get_loops(stage)
        for loop in (rows, columns):
            sch.unroll(loop)
        (sch.vectorize if stage is nearest else sch.unroll)(lane)

    # Step 4. Stage the taps, along the filters as they lie in memory
    sch.compute_at(taps, block, preserve_unit_loops=True)
    sch.set_scope(taps, 0, "shared")
    r, s, k = sch.get_loops(taps)[-3:]
    sch.reorder(k, r, s)
    threads = config.threads_y, config.threads_x, config.threads_c
    _, *loops = sch.split(sch.fuse(k, r, s), [None, *threads])
    _bind_threads(sch, *loops)

    init = sch.decompose_reduction(accumulate, row)
    for loop in sch.get_loops(init)[-3:]:
        sch.unroll(loop)
    return sch


def _bind_threads(sch: Schedule, y: LoopRV, x: LoopRV, c: LoopRV) -> None:
    for loop, thread in ((c, "threadIdx.x"), (x, "threadIdx.y"), (y, "threadIdx.z")):
        sch.bind(loop, thread)
