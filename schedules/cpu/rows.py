"""Linear layers as images: rows of channels, (N, C), are the pixels of one image in NHWC, which lies in memory alike.

A tile of several pixels then reads each vector of the weight once for several rows.
"""

from __future__ import annotations

from math import prod

import tvm
from msgspec import structs

from tvmconv.problem import Problem
from tvmconv.targets.devices import cpu_of
from tvmconv.workload import ConvWorkload

from ..space import ceil_div
from .machine import TURNS, staged_bytes
from .tile_cost import TileConfig, blocks


def with_rows_as_pixels(problem: Problem) -> Problem:
    """Return the problem of a linear layer of many rows as that of one image, of a column of them; others as they are.

    Before: `conv2d 197x384x1x1 -> 1152, 1x1`. After: `conv2d 1x384x197x1 -> 1152, 1x1 NHWC to NHWC`.
    """
    workload = problem.workload
    is_linear = prod((workload.height, workload.width, *workload.kernel)) == workload.groups == 1
    if not is_linear or workload.batch == 1 or any(workload.padding) or not workload.is_in_nchw or problem.open_sizes:
        return problem
    rows = workload.batch
    image = structs.replace(workload, batch=1, height=rows, stride=(1, 1), layout="NHWC", out_layout="NHWC")
    return structs.replace(problem, workload=image)


FEWEST_ROWS = 64
"""The rows of a task, where there are so many: with fewer a weight would be read too often from where it lies."""


def tiles_of_rows(workload: ConvWorkload, config: TileConfig, target: tvm.target.Target) -> int:
    """Return the tiles of a task: as many as have their rows in half of the second cache, and leave tasks enough."""
    steps = ceil_div(workload.height, config.rows)
    rows = cpu_of(target).l2_bytes // 2 // (staged_bytes(workload) * workload.in_channels)
    bands = ceil_div(steps, max(rows, FEWEST_ROWS) // config.rows)
    return ceil_div(steps, min(steps, max(bands, ceil_div(TURNS, blocks(workload, config)))))
