"""The gradients of a depthwise convolution on a CPU, each for any batch.

That with respect to the input has a band of a plane as a task: the rows of the output's gradient that it reads are
staged, each row of the result is computed by phases of the stride, in vectors over neighbouring columns, and then put
together. That with respect to the weight has a channel, or a band of its planes, as a task: vectors run over
neighbouring columns, and the sums of all taps stay in registers.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from ..space import ceil_div, ceil_to, wasted
from .depthwise import STAGED_BYTES, row_cost
from .machine import PARALLEL_FLOPS, TURNS, native_lanes, vector_registers

SUM_BYTES = 4
"""Bytes of a staged element and of a sum."""

UNROLLED = 128
"""The most multiply-adds that follow each other without a loop: more take LLVM seconds."""

SUMS = 8
"""The vectors of sums of the gradient with respect to the input: as many as hide the latency of multiply-adds."""

BUSY = 2
"""The rows of a tile of the gradient with respect to a weight, by which a vector of x is read for several taps."""


def input_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the input."""
    workload = compute.with_open_sizes(problem)
    # Step 0. The computation, in bands of rows whose window is not too large to stage, and whole rows
    rows, columns = compute.phases(workload)
    height, width = compute.phase_sizes(workload)
    lanes = _lanes(width, target)
    tile_i, tile_j = min(height, max(1, SUMS // prod(workload.stride))), ceil_to(width, lanes)
    most = max(1, STAGED_BYTES // (SUM_BYTES * columns.window(tile_j)) - rows.window(0))
    bands = max(ceil_div(height, most), min(ceil_div(height, tile_i), _turns(problem, workload.in_channels)))
    band_rows = ceil_to(ceil_div(height, bands), tile_i)
    sch = Schedule(te.create_prim_func(compute.input_gradient(workload, (band_rows, tile_j))))
    window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))

    # Step 1. A task is a band of a plane, some rows of each phase at a time
    n, c, h, w = sch.get_loops(output)
    band, tile, i, p = sch.split(h, [None, band_rows // tile_i, tile_i, workload.stride[0]])
    row, j, o = sch.split(w, [None, tile_j, workload.stride[1]])  # whole vectors: only what is stored is tested
    sch.reorder(n, c, band, tile, row, i, p, j, o)
    task = _tasks(sch, problem, n, c, band)
    sch.compute_at(sums, tile, preserve_unit_loops=True)
    sch.compute_at(window, task, preserve_unit_loops=True)

    # Step 2. All phases of a vector in registers, tap by tap, as far as the code stays short
    sch.transform_layout(sums, ("write", 0), lambda n, c, y, x, i, p, j, o: (n, c, y, x, i, p, o, j))
    i, p, j, o, q, r, s = sch.get_loops(sums)[-7:]
    vectors, lane = sch.split(j, [None, lanes])
    sch.reorder(vectors, q, s, r, i, p, o, lane)
    sizes = tile_i * prod(workload.stride), rows.taps, columns.taps
    unrolled = [prod(sizes[: number + 1]) <= UNROLLED for number in range(3)]
    for loops, holds in zip(((i, p, o), (r,), (s,)), unrolled, strict=True):
        for loop in loops if holds else ():
            sch.unroll(loop)
    sch.vectorize(lane)
    zeros = sch.decompose_reduction(sums, q)
    *_, i, p, o, lane = sch.get_loops(zeros)
    for loop in (i, p, o) if unrolled[0] else ():
        sch.unroll(loop)
    sch.vectorize(lane)

    # Step 3. Put the phases of a row together: without tests, so that LLVM makes vectors of it
    *_, j, o = sch.get_loops(output)
    sch.unroll(o)
    sch.annotate(j, "pragma_loop_partition_hint", True)
    return sch


def weight_gradient(problem: Problem, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient with respect to the weight."""
    workload = compute.with_open_sizes(problem)
    # Step 0. The computation, in bands that are not too large to stage, and enough for all threads
    (height, width), sw = workload.output_size, workload.stride[1]
    lanes = _lanes(width, target)
    rows, block_r = min(BUSY, height), _rows_of_taps(workload, target)
    row_bytes = SUM_BYTES * (workload.read_by((1, width))[1] * workload.stride[0] + width)
    most = max(2, (STAGED_BYTES - row_bytes * workload.window[0]) // (row_bytes * rows))
    steps = ceil_div(height, rows)
    parts = min(steps, _turns(problem, workload.out_channels))
    bands = ceil_div(ceil_div(steps, parts), most)
    shape = compute.Bands(parts, bands, ceil_div(steps, parts * bands), rows)
    sch = Schedule(te.create_prim_func(compute.weight_gradient_in_rows(workload, shape, block_r, lanes)))
    names = ("pad", "grad", "sums", "parts", "total", "output")
    pad, grad, sums, parts, total, output = (sch.get_sblock(name) for name in names)

    # Step 1. A task is a part of all planes of a channel
    k, part, *_ = sch.get_loops(parts)
    task = _tasks(sch, problem, k, part)
    for fewer in reversed(compute.folds(lanes)):
        folded = sch.get_sblock(f"folded_{fewer}")
        sch.compute_at(folded, task, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(folded)[-1])
    sch.compute_at(sums, task, preserve_unit_loops=True)
    ro, r, s, lane, n, band, step, vector, row = sch.get_loops(sums)[-9:]
    sch.reorder(n, band, ro, step, vector, s, r, row, lane)

    # Step 2. Stage the band of an image; of dy where it is not whole vectors of float32
    sch.compute_at(pad, band, preserve_unit_loops=True)
    if sw > 1:
        _by_phases(sch, pad, sw)
    if workload.dtype != "float32" or width % lanes or height % prod(shape):
        sch.compute_at(grad, band, preserve_unit_loops=True)
    else:
        sch.compute_inline(grad)

    # Step 3. The sums of all taps, or of some rows of them, in registers
    for loop in (s, r, row):
        sch.unroll(loop)
    sch.vectorize(lane)
    zeros = sch.decompose_reduction(sums, n)
    sch.vectorize(sch.get_loops(zeros)[-1])

    # Step 4. Add the parts up, and store
    *_, c, m, r, s, part = sch.get_loops(total)
    sch.reorder(c, m, part, r, s)
    sch.decompose_reduction(total, part)
    sch.reverse_compute_at(output, m)
    return sch


def _tasks(sch: Schedule, problem: Problem, *loops: LoopRV) -> LoopRV:
    """Return loops as one, over tasks that threads share if they are worth it."""
    task = sch.fuse(*loops)
    if _is_parallel(problem):
        sch.parallel(task)
    return task


def _turns(problem: Problem, channels: int) -> int:
    """Return the least number of tasks of a channel."""
    return ceil_div(TURNS, channels) if _is_parallel(problem) else 1


def _is_parallel(problem: Problem) -> bool:
    return problem.workload.flops >= PARALLEL_FLOPS


def _lanes(width: int, target: tvm.target.Target) -> int:
    """Return the lanes of vectors over so many columns."""
    native = native_lanes(target)
    return min((16, 8, 4), key=lambda lanes: (lanes > native, row_cost(width, lanes)))


def _rows_of_taps(workload: ConvWorkload, target: tvm.target.Target) -> int:
    """Return the rows of the kernel whose sums, in registers, are made together."""
    rows, columns = workload.kernel
    most = max(1, 25 * vector_registers(target) // (32 * columns))
    # With few sums there are few vectors of x that several taps share.
    return min(range(1, min(rows, most) + 1), key=lambda block: wasted(rows, block) * (1 + 0.4 / block))


def _by_phases(sch: Schedule, pad: SBlockRV, stride: int) -> None:
    """Lay out the columns of a staged band by the phases of the stride, so that a tap reads neighbouring elements."""
    band = sch.get_loops(pad)[-4]
    if sch.can_decompose_padding(pad, band):  # copies without tests, so that LLVM makes vectors of each phase
        zeros = sch.decompose_padding(pad, band)
        columns, phase = sch.split(sch.get_loops(zeros)[-1], [None, stride])
        sch.reorder(phase, columns)
    _, phase = sch.split(sch.get_loops(pad)[-1], [None, stride])
    sch.unroll(phase)
    sch.transform_layout(pad, ("write", 0), lambda n, c, h, w: (n, c, h, w % stride, w // stride))
