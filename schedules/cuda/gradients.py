"""The gradients of a depthwise convolution on CUDA, each for any batch.

That with respect to the input is computed like the convolution itself: a thread reads a window of the output's gradient
into registers, and writes a tile of all phases of the stride. That with respect to the weight is summed in two kernels:
each warp takes a part of a channel's pixels, all sums in registers, and the parts are added up in order.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvmconv import compute
from tvmconv.compute import Tiles
from tvmconv.problem import Problem
from tvmconv.targets.devices import Gpu, gpu_of
from tvmconv.workload import ConvWorkload

from ..space import ceil_div, divisors, evenly, wasted
from .machine import WARP

BLOCK_THREADS = 128

OUTPUTS = 16
"""The most outputs of a thread in the gradient with respect to the input."""

WINDOW = 128
"""The most elements of a window in registers."""

UNROLLED = 2048
"""The most multiply-adds of a thread that follow each other without a loop."""

SUMS = 49
"""The most sums that a thread has in registers, for as many taps."""

ROOM = 150
"""The most registers for sums, and for a tile with its window."""

WARPS = 32
"""The warps of the gradient with respect to the weight for each multiprocessor: twice as many as are there at once."""

WHOLE = 16
"""The most warps of a block that has all tiles of a channel, so that no second kernel adds up what blocks have."""

FEW_SUMS = 25
"""The most sums with which so many warps have registers for what they read."""


def input_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the input."""
    workload = compute.with_open_sizes(problem)
    # Step 0. The computation, in tiles of a thread
    tile, (sh, sw) = _input_tile(workload), workload.stride
    sch = Schedule(te.create_prim_func(compute.input_gradient(workload, tile)))
    window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))
    rows, columns = compute.phases(workload)
    in_registers = m_adds(workload, tile) <= UNROLLED and rows.window(tile[0]) * columns.window(tile[1]) <= WINDOW

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
        _into_registers(sch, window, 2)
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


def m_adds(workload: ConvWorkload, tile: tuple[int, int]) -> int:
    """Return the multiply-adds of a thread for one output channel of each input channel."""
    return prod(workload.kernel) * prod(tile)


def _input_tile(workload: ConvWorkload) -> tuple[int, int]:
    """Return the rows and columns of each phase that a thread computes."""
    (height, width), (sh, sw) = compute.phase_sizes(workload), workload.stride
    columns = min(width, max(1, 4 // sw))
    return min(height, max(1, OUTPUTS // (sh * sw * columns))), columns


def weight_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the weight."""
    # Step 0. The computation, in parts of a block
    tiles = weight_tiles(problem, gpu_of(target))
    sch = Schedule(te.create_prim_func(compute.weight_gradient_in_tiles(compute.with_open_sizes(problem), tiles, WARP)))
    names = ("near_x", "window", "near_dy", "grad", "sums", "warps", "parts", "output")
    near_x, window, near_dy, grad, sums, warps, parts, output = (sch.get_sblock(name) for name in names)

    # Step 1. A block has a part of a channel's tiles, for a block of taps
    c, q, r, s, *part, own = sch.get_loops(parts)
    ro, r = sch.split(r, [None, tiles.block_r])
    so, s = sch.split(s, [None, tiles.block_s])
    sch.reorder(c, q, ro, so, *part, r, s, own)
    block = sch.fuse(c, q, ro, so, *part)
    sch.bind(block, "blockIdx.x")

    # Step 2. Each thread sums its tiles in registers, turn by turn
    sch.compute_at(warps, block, preserve_unit_loops=True)
    sch.set_scope(warps, 0, "shared")
    own, r, s, lane = sch.get_loops(warps)[-4:]
    sch.bind(own, "threadIdx.y")
    sch.compute_at(sums, own, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    lane, r, s, turn, row = sch.get_loops(sums)[-5:]
    sch.reorder(lane, turn, row, r, s)
    sch.bind(lane, "threadIdx.x")
    for stage, axes in ((window, 2), (near_x, 2), (grad, 1), (near_dy, 1)):
        sch.compute_at(stage, turn, preserve_unit_loops=True)
        _into_registers(sch, stage, axes)
    for loop in (row, r, s):
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(sums, turn))[-2:]:
        sch.unroll(loop)

    # Step 3. Each warp adds up the sums of its threads, then a thread for each tap those of the warps
    *_, r, s, lane = sch.get_loops(warps)
    sch.bind(lane, "threadIdx.x")
    taps = sch.fuse(r, s)
    sch.annotate(taps, "pragma_auto_unroll_max_step", tiles.block_r * tiles.block_s)
    sch.annotate(taps, "pragma_unroll_explicit", False)  # TVM cannot repeat a sum over threads; CUDA's compiler can
    *_, r, s, own = sch.get_loops(parts)
    _, y, x = sch.split(sch.fuse(r, s), [None, tiles.warps, WARP])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    if tiles.parts == 1:
        sch.reverse_compute_at(output, x)
        sch.set_scope(parts, 0, "local")
        return sch

    # Step 4. In a second kernel a thread adds up the parts of a tap, or a warp does where there are many
    total = sch.get_sblock("total")
    adders = WARP if tiles.parts >= WARP else 1
    *taps, p = sch.get_loops(total)
    together = BLOCK_THREADS if adders == 1 else divisors(prod(problem.workload.w_shape), BLOCK_THREADS // WARP)[-1]
    block, tap = sch.split(sch.fuse(*taps), [None, together])
    sch.bind(block, "blockIdx.x")
    sch.bind(tap, "threadIdx.y")
    sch.reverse_compute_at(output, tap)
    sch.set_scope(total, 0, "local")
    turn, adder = sch.split(p, [None, adders])
    if adders == 1:
        sch.unroll(turn)
    else:
        sch.bind(adder, "threadIdx.x")
    return sch


def _into_registers(sch: Schedule, block: SBlockRV, axes: int) -> None:
    """Put a stage of so many axes into registers."""
    sch.set_scope(block, 0, "local")
    for loop in sch.get_loops(block)[-axes:]:
        sch.unroll(loop)


def weight_tiles(problem: Problem, gpu: Gpu) -> Tiles:
    """Return the shares of threads: as many rows of a tile as share what is read, and parts that keep a GPU busy."""
    workload = problem.workload
    (kr, ks), (height, width) = workload.kernel, workload.output_size
    block_s = evenly(ks, SUMS)
    block_r = evenly(kr, max(1, SUMS // block_s))

    def loads(rows: int) -> int:
        return rows + prod(Tiles(rows, block_r, block_s, 1, 1).window(workload))

    def fits(rows: int) -> bool:
        return rows == 1 or (workload.dilation[0] == 1 and loads(rows) + block_r * block_s <= ROOM)

    heights = [rows for rows in range(1, min(height, 8) + 1) if fits(rows)]
    rows = min(heights, key=lambda rows: wasted(height, rows) * loads(rows) / rows)
    channels = workload.out_channels * ceil_div(kr, block_r) * ceil_div(ks, block_s)
    most = ceil_div(workload.batch * ceil_div(height, rows) * width, WARP)
    wanted = min(most, ceil_div(WARPS * gpu.multiprocessors, channels))
    few = BLOCK_THREADS // WARP
    whole = WHOLE if block_r * block_s <= FEW_SUMS else few
    if 4 * wanted <= 5 * whole:  # a second kernel takes longer than a few warps more would save
        return Tiles(rows, block_r, block_s, min(wanted, whole), 1)
    parts = ceil_div(wanted, few)
    # In whole turns of the threads that add them up, whose control flow so is the same.
    return Tiles(rows, block_r, block_s, few, parts // WARP * WARP if parts >= WARP else parts)
