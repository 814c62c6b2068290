"""Direct convolution on CUDA: the columns of the matrix product are read from the input where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.direct import input_elements
from tvmconv.workload import ConvWorkload

from ..space import Space
from .gemm_model import best_config, features, search_space
from .gemm_schedule import schedule_gemm
from .gemm_tiles import GemmConfig, ablations

__all__ = ["LEAST", "VERSION", "Config", "ablations", "default_config", "features", "schedule", "space"]

VERSION = 2


@dataclass(frozen=True)
class Config(GemmConfig):
    """The knobs, which are those of `GemmConfig`."""


LEAST = Config(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def space(workload: ConvWorkload, target: tvm.target.Target) -> Space[Config]:
    """The configurations that are worth a trial on this target."""
    return search_space(default_config(workload, target), LEAST, workload, target, prod(workload.x_shape))


def default_config(workload: ConvWorkload, target: tvm.target.Target) -> Config:
    """A legal configuration that is reasonable for any workload."""
    return Config(**vars(best_config(workload, target, prod(workload.x_shape))))


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled; the config must be legal."""
    return schedule_gemm(workload, config, input_elements)
