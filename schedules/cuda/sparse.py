"""Convolution by a sparse weight on CUDA: the template in which every weight becomes an immediate, or nothing.

A block stages the input of a tile of pixels in shared memory, chunk of channels by chunk; neighbouring threads compute
neighbouring pixels, each of them one block of output channels (algorithm 1 of the sparse code-generation paper). The
loops marked `UNROLLED` are what `tvmconv.sparse` unrolls when it knows the weight: each block of output channels
becomes code of its own, and the blocks of pixels that run the same code are neighbours in the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.errors import NoValidConfigurationError
from tvmconv.sparse.template import UNROLLED
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, divisors, named, tile_sizes, wasted
from .machine import MULTIPROCESSORS, SHARED_ALIGNMENT

VERSION = 1
BANKS = 32
REGISTERS = 65536
"""Of a multiprocessor."""

SPARE_REGISTERS = 24
"""What a thread takes beside its outputs and what it stages."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `images * threads_y * rows * threads_x * columns` pixels."""

    channels: int
    """Output channels of a block, and of each of its threads."""
    images: int
    threads_y: int
    threads_x: int
    rows: int
    """Neighbouring rows of a thread."""
    columns: int
    """Neighbouring columns of a thread."""
    chunk: int
    """Input channels staged at a time."""
    ahead: bool
    """Stage a chunk while the one before is computed, through registers into the other buffer of two."""

    @property
    def threads(self) -> int:
        return self.images * self.threads_y * self.threads_x

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return self.threads_y * self.rows, self.threads_x * self.columns

    @property
    def outputs(self) -> int:
        """Outputs a thread keeps in registers."""
        return self.channels * self.rows * self.columns


LEAST = Config(1, 1, 1, 1, 1, 1, 1, ahead=False)


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled with all output channels in a thread; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    sch = Schedule(te.create_prim_func(compute.sparse(workload, config.tile)))
    pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "sparse", "output"))

    # Step 1. Tile the output: blocks, threads, then what a thread owns
    n, k, y, x = sch.get_loops(output)
    bn, tn = sch.split(n, [None, config.images])
    by, ty, yi = sch.split(y, [None, config.threads_y, config.rows])
    bx, tx, xi = sch.split(x, [None, config.threads_x, config.columns])
    sch.reorder(bn, by, bx, tn, ty, tx, yi, xi, k)
    sch.bind(sch.fuse(bn, by, bx), "blockIdx.x")
    thread = sch.fuse(tn, ty, tx)
    sch.bind(thread, "threadIdx.x")
    _unroll(sch, k=[k], other=[yi, xi])

    # Step 2. Accumulate in registers, chunk by chunk of the input channels
    sch.compute_at(accumulate, thread, preserve_unit_loops=True)
    sch.set_scope(accumulate, 0, "local")
    ni, k, yi, xi, c, r, s = sch.get_loops(accumulate)[-7:]
    co, ci = sch.split(c, [None, config.chunk])
    sch.reorder(co, ci, r, s, ni, yi, xi, k)

    # Step 3. Stage each chunk in shared memory, where pixels find their padding
    sch.set_scope(pad, 0, "shared")
    sch.compute_at(pad, co, preserve_unit_loops=True)
    images, channels, rows, columns = sch.get_loops(pad)[-4:]
    # Rows so long that threads side by side, over the end of a row too, find their pixels in different banks.
    sch.storage_align(pad, 0, -2, BANKS, config.tile[1] * workload.stride[1] % BANKS)
    sch.reorder(channels, images, rows, columns)
    steps, lane = sch.split(sch.fuse(images, rows, columns), [None, config.threads])
    sch.bind(lane, "threadIdx.x")
    if config.ahead:
        sch.annotate(pad, "tirx.manifest_shared_memory_local_stage", 1)
        sch.annotate(pad, "double_buffer_scope", 0)
        # Load, compute, store: the loads have all of the computation to arrive in.
        sch.annotate(co, "software_pipeline_stage", [0, 0, 1])
        sch.annotate(co, "software_pipeline_order", [0, 2, 1])

    # Step 4. Mark what the weight unrolls
    init = sch.decompose_reduction(accumulate, co)
    n0, y0, x0, k0 = sch.get_loops(init)[-4:]
    _unroll(sch, k=[k, k0], c=[channels], other=[co, ci, r, s, ni, yi, xi, n0, y0, x0, steps])
    return sch


def _unroll(sch: Schedule, **axes: list[LoopRV]) -> None:
    for axis, loops in axes.items():
        for loop in loops:
            sch.annotate(loop, UNROLLED, axis)
