"""The gradients of a depthwise convolution on CUDA whose tensors are in NHWC, each for any batch.

Neighbouring threads have neighbouring channels, as in `depthwise_nhwc`. The gradient with respect to the weight is
summed in two kernels: a thread has all sums of its channels in registers, a block adds up those of its threads, and
the second kernel those of blocks, each in an order that depends on shapes alone; `nhwc_tiles` has its tiles.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import MIN_BLOCKS
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import gpu_of

from ...space import ceil_div, divisors, evenly
from ..machine import WARP
from .nhwc_tiles import adders, weight_tiles
from .weight import BLOCK_THREADS

OUTPUTS = 64
"""The most outputs of a thread in the gradient with respect to the input."""

SUMS = 100
"""The most sums that a thread has in registers, for as many taps of its channels."""

ROOM = 150
"""The most registers for sums, for a tile, and for two rows of its window."""

UNROLLED = 1024
"""The most multiply-adds of a thread that follow each other without a loop."""


def takes(workload: ConvWorkload) -> bool:
    """Return whether there are schedules for a workload: of one output for each channel, with all sums in registers.

    Of larger kernels a thread would read an element for each product.
    """
    return workload.multiplier == 1 and prod(workload.kernel) <= SUMS


def input_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the input."""
    # Step 0. The computation, in tiles of a thread
    workload = compute.with_open_sizes(problem)
    vector, tile = input_tile(workload)
    (ti, tj), (sh, sw) = tile, workload.stride
    sch = Schedule(te.create_prim_func(compute.input_gradient(workload, tile)))
    window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))
    store = sch.cache_write(output, 0, "local")

    # Step 1. Tile the output: blocks, threads, and the pixels of a thread, all phases among them
    tiles_y, tiles_x = map(ceil_div, compute.phase_sizes(workload), tile)
    threads_c = divisors(workload.in_channels // vector, WARP)[-1]
    threads_x = evenly(tiles_x, max(1, BLOCK_THREADS // threads_c))
    threads_y = evenly(tiles_y, max(1, min(64, BLOCK_THREADS // (threads_c * threads_x))))
    n, h, w, c = sch.get_loops(store)
    by, ty, i, p = sch.split(h, [None, threads_y, ti, sh])
    bx, tx, j, o = sch.split(w, [None, threads_x, tj, sw])
    bc, tc, lane = sch.split(c, [None, threads_c, vector])
    sch.reorder(n, by, bx, bc, ty, tx, tc, i, p, j, o, lane)
    sch.bind(sch.fuse(n, by, bx, bc), "blockIdx.x")
    for loop, thread in ((ty, "threadIdx.z"), (tx, "threadIdx.y"), (tc, "threadIdx.x")):
        sch.bind(loop, thread)

    # Step 2. Store vectors of channels
    for loop in (i, p, j, o):
        sch.unroll(loop)
    sch.compute_at(output, o, preserve_unit_loops=True)
    sch.unroll(sch.get_loops(output)[-1])
    sch.vectorize(lane)

    # Step 3. Accumulate in registers, from a window in registers, or through the cache where it is too large
    sch.compute_at(sums, tc, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    *_, c, _, _, i_, p_, j_, o_, q, r, s = sch.get_loops(sums)
    inner = (i_, p_, j_, o_, c)
    sch.reorder(q, r, s, *inner)
    rows, columns = (each.window(size) for each, size in zip(compute.phases(workload), tile, strict=True))
    in_registers = vector * rows * columns <= ROOM and vector * prod(workload.kernel) * ti * tj <= UNROLLED
    if in_registers:
        sch.compute_at(window, q, preserve_unit_loops=True)
        sch.set_scope(window, 0, "local")
        *_, k, _, _, row, column = sch.get_loops(window)
        sch.reorder(row, column, k)
        for loop in (row, column):
            sch.unroll(loop)
        sch.vectorize(k)
    else:
        sch.compute_inline(window)
    for loop in (*inner, *((r, s) if in_registers else ())):
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(sums, q))[-5:]:
        sch.unroll(loop)
    return sch


def input_tile(workload: ConvWorkload) -> tuple[int, tuple[int, int]]:
    """Return the channels of a thread, and the rows and columns of each phase that it computes."""
    vector = next(size for size in (4, 2, 1) if workload.in_channels % size == 0)
    (height, width), (sh, sw) = compute.phase_sizes(workload), workload.stride
    columns = min(width, max(1, 4 // sw))
    return vector, (min(height, max(1, OUTPUTS // (vector * sh * sw * columns))), columns)


def weight_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the weight."""
    # Step 0. The computation
    workload = problem.workload
    vector, threads_c, tiles, resident, ahead = weight_tiles(problem, gpu_of(target))
    sch = Schedule(te.create_prim_func(compute.weight_gradient_in_channels(compute.with_open_sizes(problem), tiles)))
    near_x, wide_x, window = (sch.get_sblock(name) for name in ("near_x", "wide_x", "window"))
    near_dy, wide_dy, grad = (sch.get_sblock(name) for name in ("near_dy", "wide_dy", "grad"))
    sums, parts, total, output = (sch.get_sblock(name) for name in ("sums", "parts", "total", "output"))

    # Step 1. A block has a part of the tiles of some channels
    stored = sch.cache_write(parts, 0, "local")
    p, r, s, k = sch.get_loops(stored)
    bk, own = sch.split(k, [None, threads_c * vector])
    sch.reorder(p, bk, r, s, own)
    block = sch.fuse(p, bk)
    sch.bind(block, "blockIdx.x")

    # Step 2. Each thread sums its tiles in registers, turn by turn. What is moved into loops is there before these are
    # split: then its places have no conditions of the split.
    own = sch.fuse(s, own)
    sch.compute_at(parts, own, preserve_unit_loops=True)
    staged = sch.cache_read(parts, 0, "shared")
    sch.compute_at(staged, r, preserve_unit_loops=True)
    sch.compute_at(sums, block, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    _, thread_y, thread_x = sch.split(own, [None, tiles.threads, threads_c])
    _bind_threads(sch, thread_y, thread_x)
    sch.annotate(thread_x, MIN_BLOCKS, resident)  # a compiler takes fewer registers for more, and waits for memory
    *_, own, r_, s_, k, turn, row, column = sch.get_loops(sums)
    tk, lane = sch.split(k, [threads_c, vector])
    sch.reorder(own, tk, turn, row, column, r_, s_, lane)
    _bind_threads(sch, own, tk)
    places = {grad: turn, wide_dy: turn, near_dy: turn, window: row, wide_x: row, near_x: turn if ahead else row}
    for stage, place in places.items():
        sch.compute_at(stage, place, preserve_unit_loops=True)
        _into_registers(sch, stage, is_vector=stage in (near_x, near_dy))
    for loop in (row, column, r_, s_, lane):
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(sums, turn))[-3:]:
        sch.unroll(loop)

    # Step 3. The block adds up the sums of its threads, a row of taps at a time, from shared memory
    sch.unroll(r)  # registers have no addresses
    *_, own, _, s_, k = sch.get_loops(staged)
    tk, lane = sch.split(k, [threads_c, vector])
    sch.reorder(own, tk, s_, lane)
    _bind_threads(sch, own, tk)
    sch.unroll(s_)
    sch.vectorize(lane)
    sch.decompose_reduction(parts, sch.get_loops(parts)[-1])

    # Step 4. In the second kernel the threads of a warp's column add up the parts of a tap of a channel
    *taps, k, p = sch.get_loops(total)
    lanes = divisors(workload.out_channels, WARP)[-1]
    bk, tk = sch.split(k, [None, lanes])
    sch.bind(sch.fuse(*taps, bk), "blockIdx.x")
    sch.bind(tk, "threadIdx.x")
    _, adder = sch.split(p, [None, adders(tiles.parts)])
    sch.bind(adder, "threadIdx.y")
    sch.set_scope(total, 0, "local")
    sch.reverse_compute_at(output, tk, preserve_unit_loops=True)
    return sch


def _bind_threads(sch: Schedule, y: LoopRV, x: LoopRV) -> None:
    for loop, thread in ((y, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(loop, thread)


def _into_registers(sch: Schedule, block: SBlockRV, is_vector: bool) -> None:
    """Put a stage of rows, columns and channels into registers."""
    sch.set_scope(block, 0, "local")
    *_, row, column, lane = sch.get_loops(block)
    sch.unroll(row)
    sch.unroll(column)
    (sch.vectorize if is_vector else sch.unroll)(lane)
