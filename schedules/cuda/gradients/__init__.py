"""The gradients of a depthwise convolution on CUDA, each for any batch.

That with respect to the input is computed like the convolution itself: a thread reads a window of the output's gradient
into registers, and writes a tile of all phases of the stride. That with respect to the weight is in `weight`.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import gpu_of

from ...space import ceil_div, divisors, evenly
from . import diagonals, weight
from .diagonals_tiles import best_tiles, takes
from .weight import BLOCK_THREADS

__all__ = ["input_gradient", "weight_gradient"]

OUTPUTS = 16
"""The most outputs of a thread in the gradient with respect to the input."""

WINDOW = 128
"""The most elements of a window in registers."""

UNROLLED = 2048
"""The most multiply-adds of a thread that follow each other without a loop."""


def input_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the input."""
    workload = compute.with_open_sizes(problem)
    # Step 0. The computation, in tiles of a thread
    tile, (sh, sw) = _input_tile(workload), workload.stride
    in_registers = m_adds(workload, tile) <= UNROLLED and prod(compute.window_shape(workload, tile)) <= WINDOW
    lanes = _lanes(workload, tile) if in_registers else 1
    sch = Schedule(te.create_prim_func(compute.input_gradient(workload, tile, lanes)))
    window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))

    # Step 1. Tile the output: blocks, threads, and the rows and columns of a thread, all phases among them
    tiles_y, tiles_x = map(ceil_div, compute.phase_sizes(workload), tile)
    threads_x = evenly(tiles_x, 64)
    threads_y = evenly(tiles_y, max(1, BLOCK_THREADS // threads_x))
    threads_z = divisors(workload.in_channels, min(64, max(1, BLOCK_THREADS // (threads_x * threads_y))))[-1]
    n, c, h, w = sch.get_loops(output)
    bz, tz = sch.split(c, [None, threads_z])
    by, ty, i, p = sch.split(h, [None, threads_y, tile[0], sh])
    bx, tx, j = sch.split(w, [None, threads_x, tile[1] * sw])
    sch.reorder(n, bz, by, bx, tz, ty, tx, i, p, j)
    sch.bind(sch.fuse(n, bz, by, bx), "blockIdx.x")
    for loop, thread in ((tz, "threadIdx.z"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        sch.bind(loop, thread)

    # Step 2. Accumulate in registers, from a window in registers, or through the cache where it is too large
    sch.compute_at(sums, tx, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    inner = sch.get_loops(sums)[-7:]
    q, r, s = inner[-3:]
    sch.reorder(q, r, s, *inner[:-3])
    if in_registers:
        sch.compute_at(window, q, preserve_unit_loops=True)
        sch.set_scope(window, 0, "local")
        row, column, *vector = sch.get_loops(window)[-2 if lanes == 1 else -3 :]
        for loop in (row, column):
            sch.unroll(loop)
        for loop in vector:
            sch.vectorize(loop)
    else:
        sch.compute_inline(window)
    for loop in (*inner[:-3], *((r, s) if in_registers else ())):
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(sums, q))[-4:]:
        sch.unroll(loop)

    # Step 3. Store neighbouring columns together
    store = next(size for size in (4, 2, 1) if workload.width % size == 0 and tile[1] * sw % size == 0)
    *_, i, p, j = sch.get_loops(output)
    j, vector = sch.split(j, [None, store])
    for loop in (i, p, j):
        sch.unroll(loop)
    sch.vectorize(vector)
    return sch


def weight_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the weight: on tensor cores, if that takes fewer clocks."""
    found = best_tiles(problem, target) if takes(problem, target) else None
    if found is not None and found.clocks < weight.estimate(problem, gpu_of(target)):
        return diagonals.schedule(problem, found.tiles, target)
    return weight.weight_gradient(problem, target)


def m_adds(workload: ConvWorkload, tile: tuple[int, int]) -> int:
    """Return the multiply-adds of a thread for one output channel of each input channel."""
    return prod(workload.kernel) * prod(tile)


def _lanes(workload: ConvWorkload, tile: tuple[int, int]) -> int:
    """Return the columns of a window that are read together: as many as there are registers for."""
    return next(
        size
        for size in (4, 2, 1)
        if tile[1] % size == workload.output_size[1] % size == 0
        and size * prod(compute.window_shape(workload, tile, size)) <= WINDOW
    )


def _input_tile(workload: ConvWorkload) -> tuple[int, int]:
    """Return the rows and columns of each phase that a thread computes."""
    (height, width), (sh, sw) = compute.phase_sizes(workload), workload.stride
    columns = min(width, max(1, 4 // sw))
    return min(height, max(1, OUTPUTS // (sh * sw * columns))), columns
