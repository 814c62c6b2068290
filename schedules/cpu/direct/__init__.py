"""Direct convolution on a CPU: tiles of outputs in registers read the input in place, or a padded copy of it.

Linear layers of many rows are an image of as many pixels, whose channels are last: a tile stores what it has summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from ...open_sizes import samples
from ...space import named
from ...template import Layouts
from ..machine import staged_bytes
from ..template import CpuTemplate, Tests
from . import register_tiles
from .register_tiles import STAGED_BYTES, best_tile, schedule_tiles, tile_knobs, tiles_to_stage
from .rows import as_image, has_many_rows, has_work_for_threads, tiles_of_rows, with_rows_as_pixels
from .tile_cost import TileConfig, cost


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
        return register_tiles.heuristics(with_rows_as_pixels(problem).workload, target)

    def default_config(self, problem: Problem, target: tvm.target.Target) -> Config:
        workload = problem.workload
        best = Config(**vars(best_tile(with_rows_as_pixels(problem), target)))
        if has_many_rows(problem):
            return replace(best, tiles=tiles_of_rows(problem, best, target), parallel=has_work_for_threads(problem))
        if not any(workload.padding):
            return best
        whole = staged_bytes(workload) * workload.in_channels * prod(workload.padded_input)
        if whole <= STAGED_BYTES and not problem.has_open_planes:
            return replace(best, staged=2)
        row_bytes = staged_bytes(workload) * workload.w_shape[1] * workload.padded_input[1]
        return replace(best, staged=1, tiles=tiles_to_stage(problem, best, row_bytes))

    def estimate(self, problem: Problem, config: Config, target: tvm.target.Target) -> float:
        """Return the cycles that a core should take for an image, the mean of open planes of any size."""
        one = with_rows_as_pixels(problem)
        images = problem.workload.batch // one.workload.batch
        return fmean(cost(workload, config, target) for workload in samples(one)) / images

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


template = Direct()
