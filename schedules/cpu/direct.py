"""Direct convolution on a CPU: tiles of outputs in registers read the input in place, or a padded copy of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.workload import ConvWorkload

from ..space import Space
from .machine import staged_bytes
from .register_tiles import (
    STAGED_BYTES,
    ablations,
    best_tile,
    constraints,
    estimate,
    features,
    heuristics,
    schedule_tiles,
    tile_knobs,
    tiles_to_stage,
)
from .tile_cost import TileConfig

__all__ = [
    "LEAST",
    "VERSION",
    "Config",
    "ablations",
    "default_config",
    "estimate",
    "features",
    "schedule",
    "space",
    "supports",
]

VERSION = 1


def supports(workload: ConvWorkload) -> bool:
    """Whether a tile is in blocks of channels where they are: none reaches into another group."""
    return workload.groups == 1 or workload.is_in_nchw


@dataclass(frozen=True)
class Config(TileConfig):
    """The knobs, which are those of `TileConfig`."""


LEAST = Config(1, 1, 1, 1, 1, 1, staged=0, parallel=False)


def space(workload: ConvWorkload, target: tvm.target.Target) -> Space[Config]:
    """The configurations worth trying for a workload, legal on the target."""
    default, knobs = default_config(workload, target), tile_knobs(workload, target)
    return Space(default, LEAST, knobs, constraints(workload, target), heuristics(workload, target))


def default_config(workload: ConvWorkload, target: tvm.target.Target) -> Config:
    """A legal configuration that is reasonable for any workload."""
    best = Config(**vars(best_tile(workload, target)))
    if not any(workload.padding):
        return best
    if staged_bytes(workload) * workload.in_channels * prod(workload.padded_input) <= STAGED_BYTES:
        return replace(best, staged=2)
    row_bytes = staged_bytes(workload) * workload.w_shape[1] * workload.padded_input[1]
    return replace(best, staged=1, tiles=tiles_to_stage(workload, best, row_bytes))


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled; the config must be legal."""
    tile = (config.block, config.rows * config.tiles, config.columns)
    sch = Schedule(te.create_prim_func(compute.direct(workload, tile)))
    schedule_tiles(sch, workload, config, "direct", staged="pad")
    return sch
