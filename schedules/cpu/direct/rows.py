"""Linear layers as images: rows of channels, (N, C), are the pixels of one image in NHWC, which lies in memory alike.

A tile of several pixels then reads each vector of the weight once for several rows.
"""

from __future__ import annotations

import tvm
from msgspec import structs

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import TURNS, cpu_of

from ...space import ceil_div
from ..machine import PARALLEL_FLOPS, staged_bytes
from .tile_cost import TileConfig, blocks


def has_many_rows(problem: Problem) -> bool:
    """Return whether a problem is a linear layer of several rows, by the batch that its configuration is chosen for."""
    workload = problem.workload
    linear = workload.is_linear and workload.is_in_nchw and problem.is_dense and not problem.has_open_planes
    return linear and workload.batch > 1


def as_image(workload: ConvWorkload) -> ConvWorkload:
    """Return the workload of a linear layer, whose batch may be open, as that of one image with a column of its rows.

    Before: `conv2d 197x384x1x1 -> 1152, 1x1`. After: `conv2d 1x384x197x1 -> 1152, 1x1 NHWC to NHWC`.
    """
    rows = workload.batch
    return structs.replace(workload, batch=1, height=rows, stride=(1, 1), layout="NHWC", out_layout="NHWC")


def with_rows_as_pixels(problem: Problem) -> Problem:
    """Return the problem of a linear layer of many rows as that of one image, all sizes known; others as they are."""
    if not has_many_rows(problem):
        return problem
    return structs.replace(problem, workload=as_image(problem.workload), open_sizes=())


FEWEST_ROWS = 64
"""The rows of a task, where there are so many: with fewer a weight would be read too often from where it lies."""


def has_work_for_threads(problem: Problem) -> bool:
    """Return whether a linear layer of many rows has work for threads, where their number is open if they are many.

    Threads cost a few rows some microseconds, and one thread costs many rows a multiple of their time.
    """
    workload = problem.workload
    rows = max(workload.batch, FEWEST_ROWS) if problem.open_sizes else workload.batch
    return workload.flops // workload.batch * rows >= PARALLEL_FLOPS


def tiles_of_rows(problem: Problem, config: TileConfig, target: tvm.target.Target) -> int:
    """Return the tiles of a task: as many as have their rows in half of the second cache, and leave tasks enough.

    It is one where the number of rows is open: all tiles of a task are computed, those beyond the last row, too.
    """
    workload = problem.workload
    steps = ceil_div(workload.batch, config.rows)
    if problem.open_sizes:
        return 1
    rows = cpu_of(target).l2_bytes // 2 // (staged_bytes(workload) * workload.in_channels)
    bands = ceil_div(steps, max(rows, FEWEST_ROWS) // config.rows)
    return ceil_div(steps, min(steps, max(bands, ceil_div(TURNS, blocks(workload, config)))))
