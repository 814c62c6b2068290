"""Direct convolution on CUDA: the columns of the matrix product are read from the input where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.dense.direct import input_elements
from tvmconv.problem import Problem
from tvmconv.targets.devices import gpu_of

from ...space import Space
from ...template import Layouts
from ..gemm.schedule import schedule_gemm
from ..gemm.tiles import GemmConfig, ablations
from .model import best_config, estimated_clocks, features, obstacle, search_space

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
    "schedule",
    "space",
]

VERSION = 2

LAYOUTS = Layouts()

OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")


@dataclass(frozen=True)
class Config(GemmConfig):
    """The knobs, which are those of `GemmConfig`."""


LEAST = Config(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    workload = problem.workload
    return search_space(default_config(problem, target), LEAST, workload, target, prod(workload.x_shape))


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return a legal configuration that is reasonable for any workload."""
    workload = problem.workload
    return Config(**vars(best_config(workload, target, prod(workload.x_shape))))


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the busiest multiprocessor should take."""
    return estimated_clocks(problem, config, gpu_of(target))


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
    return schedule_gemm(problem, config, input_elements)
