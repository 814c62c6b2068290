"""Direct convolution on a CPU: tiles of outputs in registers read the input directly, or a padded copy of it.

Linear layers of many rows are one image in NHWC, whose pixels are the rows: (N, C) lies in memory alike. A tile of
several pixels reads each vector of the weight once for several rows, and stores what it has summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from msgspec import structs
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import TURNS, cpu_of

from ...space import ceil_div, named
from ...template import Layouts
from ..machine import PARALLEL_FLOPS, staged_bytes
from ..model import Counts
from ..template import CpuTemplate, Tests
from . import register_tiles
from .register_tiles import STAGED_BYTES, schedule_tiles, tile_knobs, tiles_to_stage
from .tiles import TileConfig, blocks, counts

FEWEST_ROWS = 64
"""The rows of a task, if a layer has that number: with fewer the weight would be read from memory too often."""


@dataclass(frozen=True)
class Config(TileConfig):
    """The knobs, which are those of `TileConfig`."""


def staged_rows_are_known(config: TileConfig) -> bool:
    """Return whether no band of an open number of rows is staged, whose size TVM cannot bound."""
    return config.staged != 1


class Direct(CpuTemplate[Config]):
    """Direct convolution on a CPU."""

    LAYOUTS = Layouts(x=("NCHW", "NCHWc"), output=("NCHW", "NCHWc"))
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(1, 1, 1, 1, 1, 1, staged=0, parallel=False)
    examples = (
        Problem(ConvWorkload.conv2d((2, 8, 7, 9), (20, 8, 3, 3), shift=True, residual=True, activation="relu")),
        Problem(ConvWorkload.conv2d((1, 12, 13, 15), (15, 4, 3, 3), groups=3, stride=2, dtype="float16")),
        Problem(ConvWorkload.conv2d((29, 24, 1, 1), (20, 24, 1, 1), shift=True, activation="gelu")),
        Problem(ConvWorkload.conv2d((1, 3, 31, 31), (16, 3, 7, 7), stride=2, dtype="bfloat16"), open_sizes=OPEN_SIZES),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take convolutions whose channels meet, in blocks of channels those of one group."""
        workload = problem.workload
        if not problem.is_dense:
            return "is for dense convolutions"
        if workload.groups > 1 and not workload.is_in_nchw:
            return f"takes one group in blocks of channels, not {workload.groups}"
        return None

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        return tile_knobs(with_rows_as_pixels(problem).workload, target)

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        legal = register_tiles.constraints(with_rows_as_pixels(problem).workload, target)
        if has_many_rows(problem) and problem.open_sizes:
            legal |= named(staged_rows_are_known)
        return legal

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        def estimate(tile: TileConfig) -> float:
            return self.estimate(problem, _with_tasks(problem, tile, target), target)

        return register_tiles.heuristics(with_rows_as_pixels(problem).workload, target, estimate)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        tiles = register_tiles.register_tiles(with_rows_as_pixels(problem).workload, target)
        return (_with_tasks(problem, tile, target) for tile in tiles)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        return counts(with_rows_as_pixels(problem), config, target, windows=False)

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return register_tiles.ablations(config)

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        return register_tiles.features(with_rows_as_pixels(problem), config, target)

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        workload = compute.with_open_sizes(problem)
        workload = as_image(workload) if has_many_rows(problem) else workload
        tile = (config.block, config.rows * config.tiles, config.columns)
        sch = Schedule(te.create_prim_func(compute.direct(workload, tile)))
        schedule_tiles(sch, workload, config, "direct", staged="pad")
        return sch


def _with_tasks(problem: Problem, tile: TileConfig, target: tvm.target.Target) -> Config:
    """Return the configuration of a register tile, with the tiles of a task; an input with padding is staged."""
    workload, config = problem.workload, Config(**vars(tile))
    if has_many_rows(problem):
        return replace(config, tiles=tiles_of_rows(problem, config, target), parallel=has_work_for_threads(problem))
    if not any(workload.padding):
        return config
    whole = staged_bytes(workload) * workload.in_channels * prod(workload.padded_input)
    if whole <= STAGED_BYTES and not problem.has_open_planes:
        return replace(config, staged=2)
    row_bytes = staged_bytes(workload) * workload.w_shape[1] * workload.padded_input[1]
    return replace(config, staged=1, tiles=tiles_to_stage(problem, config, row_bytes))


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


def has_work_for_threads(problem: Problem) -> bool:
    """Return whether a linear layer of many rows has work for threads, where their number is open if they are many.

    Threads cost a few rows some microseconds, and one thread costs many rows a multiple of their time.
    """
    workload = problem.workload
    rows = max(workload.batch, FEWEST_ROWS) if problem.open_sizes else workload.batch
    return workload.flops // workload.batch * rows >= PARALLEL_FLOPS


def tiles_of_rows(problem: Problem, config: TileConfig, target: tvm.target.Target) -> int:
    """Return the number of tiles in a task: their rows fit into half of the L2 cache, and `TURNS` tasks are left.

    It is one where the number of rows is open: all tiles of a task are computed, those beyond the last row, too.
    """
    workload = problem.workload
    steps = ceil_div(workload.batch, config.rows)
    if problem.open_sizes:
        return 1
    rows = cpu_of(target).l2_bytes // 2 // (staged_bytes(workload) * workload.in_channels)
    bands = ceil_div(steps, max(rows, FEWEST_ROWS) // config.rows)
    return ceil_div(steps, min(steps, max(bands, ceil_div(TURNS, blocks(workload, config)))))


template = Direct()
