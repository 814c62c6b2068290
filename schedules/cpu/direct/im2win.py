"""Convolution over im2win's windows on a CPU: tiles of outputs in registers read windows that are contiguous.

The windows are laid out in a band for each task, beside the weight in the second cache, or as a whole ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from ...template import Layouts
from ..machine import staged_bytes
from ..model import Counts
from ..template import CpuTemplate, Tests
from . import register_tiles
from .register_tiles import STAGED_BYTES, schedule_tiles, tile_knobs, tiles_to_stage
from .tiles import TileConfig, counts


@dataclass(frozen=True)
class Config(TileConfig):
    """The knobs, which are those of `TileConfig`; windows are always staged."""


class Im2win(CpuTemplate[Config]):
    """Convolution over im2win's windows on a CPU."""

    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(1, 1, 1, 1, 1, 1, staged=1, parallel=False)
    examples = (
        Problem(ConvWorkload.conv2d((2, 8, 7, 9), (20, 8, 3, 3), shift=True, residual=True, activation="relu")),
        Problem(ConvWorkload.conv2d((1, 12, 13, 15), (15, 4, 3, 3), groups=3, stride=2, dtype="float16")),
        Problem(ConvWorkload.conv2d((1, 3, 31, 31), (16, 3, 7, 7), stride=2, dtype="bfloat16"), open_sizes=OPEN_SIZES),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take convolutions whose channels meet."""
        return None if problem.is_dense else "is for dense convolutions"

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        return {**tile_knobs(problem.workload, target), "staged": (1, 2)}

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        return register_tiles.constraints(problem.workload, target)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        def estimate(tile: TileConfig) -> float:
            return self.estimate(problem, _with_tasks(problem, tile), target)

        return register_tiles.heuristics(problem.workload, target, estimate)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        return (_with_tasks(problem, tile) for tile in register_tiles.register_tiles(problem.workload, target))

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        return counts(problem, config, target, windows=True)

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        return register_tiles.features(problem, config, target)

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return register_tiles.ablations(config)

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        workload = compute.with_open_sizes(problem)
        tile = (config.block, config.rows * config.tiles, config.columns)
        sch = Schedule(te.create_prim_func(compute.im2win(workload, tile)))
        sch.compute_inline(sch.get_sblock("pad"))
        schedule_tiles(sch, workload, config, "im2win", staged="windows")
        sch.unroll(sch.get_loops(sch.get_sblock("windows"))[-1])
        return sch


def _with_tasks(problem: Problem, tile: TileConfig) -> Config:
    """Return the configuration of a register tile, with the tiles of a task, whose windows stay in the second cache."""
    workload, config = problem.workload, Config(**vars(replace(tile, staged=2)))
    row_bytes = staged_bytes(workload) * workload.w_shape[1] * workload.padded_input[1] * workload.kernel[0]
    if not problem.has_open_planes and row_bytes * workload.output_size[0] * workload.groups <= STAGED_BYTES:
        return config
    return replace(config, staged=1, tiles=tiles_to_stage(problem, config, row_bytes))


template = Im2win()
