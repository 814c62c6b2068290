"""Convolution by a sparse weight on CUDA: the template in which every weight becomes an immediate, or nothing.

A block stages the input of a tile of pixels in shared memory, chunk of channels by chunk; neighbouring threads compute
neighbouring pixels, each of them one block of output channels (algorithm 1 of the sparse code-generation paper). The
loops marked `UNROLLED` are what `tvmconv.lowering.folding` unrolls when it knows the weight: each block of output
channels becomes code of its own, and the blocks of pixels that run the same code are neighbours in the grid.
"""

from __future__ import annotations

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.compute.annotations import COPIED, UNROLLED
from tvmconv.compute.gradients.weight_planes import BANKS
from tvmconv.problem import Problem

from ...template import Layouts
from .model import ablations, default_config, estimate, features, obstacle, pays, space
from .tiles import LEAST, Config, copies, pitch

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
    "pays",
    "schedule",
    "space",
]

VERSION = 1

LAYOUTS = Layouts()

OPEN_SIZES: tuple[str, ...] = ("batch",)


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation with all output channels in a thread; the config must be legal."""
    workload = compute.with_open_sizes(problem)
    # Step 0. The computation, rounded up to whole tiles
    sch = Schedule(te.create_prim_func(compute.sparse(workload, config.tile)))
    pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "sparse", "output"))

    # Step 1. Tile the output: blocks, threads, then what a thread owns
    n, k, y, x = sch.get_loops(output)
    bn, tn = sch.split(n, [None, config.images])
    by, ty, yi = sch.split(y, [None, config.threads_y, config.thread_y])
    bx, tx, xi = sch.split(x, [None, config.threads_x, config.thread_x])
    sch.reorder(bn, by, bx, tn, ty, tx, yi, xi, k)
    block, _ = sch.split(sch.fuse(bn, by, bx), [None, config.tiles])
    sch.bind(block, "blockIdx.x")
    thread = sch.fuse(tn, ty, tx)
    sch.bind(thread, "threadIdx.x")
    _unroll(sch, k=[k], other=[yi, xi])

    # Step 2. Accumulate in registers, chunk by chunk of the input channels
    sch.compute_at(accumulate, thread, preserve_unit_loops=True)
    sch.set_scope(accumulate, 0, "local")
    ni, k, yi, xi, c, r, s = sch.get_loops(accumulate)[-7:]
    co, ci = sch.split(c, [None, config.block_c])
    sch.reorder(co, ci, r, s, ni, yi, xi, k)

    # Step 3. Stage each chunk in shared memory, where pixels find their padding
    sch.set_scope(pad, 0, "shared")
    sch.compute_at(pad, co, preserve_unit_loops=True)
    images, channels, rows, columns = sch.get_loops(pad)[-4:]
    sch.storage_align(pad, 0, -2, BANKS, pitch(workload, config) % BANKS)
    sch.reorder(channels, images, rows, columns)
    steps, lane = sch.split(sch.fuse(images, rows, columns), [None, config.threads])
    sch.bind(lane, "threadIdx.x")
    if copies(workload):
        sch.annotate(channels, COPIED, config.num_stages)
    if config.num_stages > 1:
        sch.annotate(co, "software_pipeline_stage", [0, config.num_stages - 1])
        sch.annotate(co, "software_pipeline_order", [0, 1])

    # Step 4. Mark what the weight unrolls
    init = sch.decompose_reduction(accumulate, co)
    n0, y0, x0, k0 = sch.get_loops(init)[-4:]
    _unroll(sch, k=[k, k0], c=[channels], other=[co, ci, r, s, ni, yi, xi, n0, y0, x0, steps])
    return sch


def _unroll(sch: Schedule, **axes: list[LoopRV]) -> None:
    for axis, loops in axes.items():
        for loop in loops:
            sch.annotate(loop, UNROLLED, axis)
