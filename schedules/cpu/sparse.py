"""Convolution by a sparse weight on a CPU: the template in which every weight becomes an immediate, or nothing.

A task stages a padded band of the input, in which the pixels of all rows are numbered through; then each block of
output channels goes over the band's pixels, so many vectors at a time, in code of its own whose sums are in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.sparse.template import SHARES, UNROLLED
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, named, tile_sizes
from .machine import native_lanes

VERSION = 1


@dataclass(frozen=True)
class Config:
    """The knobs."""

    channels: int
    """Output channels of a block, whose sums are in registers."""
    vectors: int
    """Vectors of pixels that a block computes at a time."""
    rows: int
    """Rows of output of a band."""
    shares: int
    """Tasks of a band, which stages it each for itself and does its share of the blocks."""
    parallel: bool
    """Spread the tasks over the threads of the machine."""


LEAST = Config(1, 1, 1, 1, parallel=False)


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled with all output channels in a block; the config must be legal."""
    # Step 0. The computation, in bands of rows and whole tiles of pixels
    lanes = native_lanes(target)
    sch = Schedule(te.create_prim_func(compute.sparse_rows(workload, config.rows, config.vectors * lanes)))
    pad, accumulate, rows, output = (sch.get_sblock(name) for name in ("pad", "sparse", "rows", "output"))

    # Step 1. A band is a task, or several with a share of the output channels each
    sch.compute_inline(rows)
    n, k, y, _ = sch.get_loops(output)
    band, yi = sch.split(y, [None, config.rows])
    sch.reorder(n, band, k, yi)
    task = sch.fuse(n, band)
    sch.annotate(task, SHARES, config.shares)
    if config.parallel:
        sch.parallel(task)
    sch.annotate(k, UNROLLED, "k")

    # Step 2. Sum the pixels of a tile in registers, and keep those of the band
    sch.compute_at(accumulate, task, preserve_unit_loops=True)
    keep = sch.cache_write(accumulate, 0, "local")
    k, tile, pixel = sch.get_loops(keep)[-3:]
    vector, lane = sch.split(pixel, [None, lanes])
    sch.reorder(tile, vector, k, lane)
    sch.compute_at(accumulate, tile, preserve_unit_loops=True)
    sch.vectorize(lane)
    _unroll(sch, vector, k=k)

    # Step 3. Tap by tap; each vector of the input meets the weights of all output channels
    k, _, pixel, c, r, s = sch.get_loops(accumulate)[-6:]
    vector, lane = sch.split(pixel, [None, lanes])
    sch.reorder(c, r, s, vector, k, lane)
    sch.vectorize(lane)
    init = sch.decompose_reduction(accumulate, c)
    _unroll(sch, c, r, s, vector, k=k)
    vector, k, _ = sch.get_loops(init)[-3:]
    _unroll(sch, vector, k=k)

    # Step 4. Stage the band
    sch.compute_at(pad, task, preserve_unit_loops=True)
    place = sch.get_loops(pad)[-1]
    sch.split(place, [None, compute.band_pitch(workload)])
    return sch


def _unroll(sch: Schedule, *others: LoopRV, k: LoopRV) -> None:
    for loop in others:
        sch.annotate(loop, UNROLLED, "other")
    sch.annotate(k, UNROLLED, "k")
