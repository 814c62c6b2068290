"""Convolution over im2win's windows on CUDA: a kernel lays the windows out, and the matrix product's columns read them.

As the im2win thesis has it (algorithms 2, 3 and 9): the windows are the input again, some R / stride times as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.dense.im2win import window_elements
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import gpu_of

from ...space import Space
from ...template import Layouts
from ..gemm.schedule import schedule_gemm, spread_over_grid
from ..gemm.tiles import GemmConfig, ablations
from . import model
from .model import SECOND_KERNEL, best_config, bytes_per_clock, estimated_clocks, features, search_space

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

VERSION = 1

LAYOUTS = Layouts()

OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")


@dataclass(frozen=True)
class Config(GemmConfig):
    """The knobs, which are those of `GemmConfig`."""


LEAST = Config(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take the convolutions of `direct` whose windows TVM can count in 32 bits."""
    if found := model.obstacle(problem, target):
        return found
    return None if _windows(problem.workload) < 2**31 else "takes windows of fewer than 2^31 elements together"


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    workload = problem.workload
    return search_space(default_config(problem, target), LEAST, workload, target, _windows(workload))


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return a legal configuration that is reasonable for any workload."""
    workload = problem.workload
    return Config(**vars(best_config(workload, target, _windows(workload))))


def _windows(workload: ConvWorkload) -> int:
    """Return the number of elements of the windows, which have whole strides of columns."""
    columns = workload.padded_input[1] + workload.stride[1]
    return prod(workload.x_shape[:2]) * workload.output_size[0] * workload.kernel[0] * columns


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks of `direct`, and those of the kernel that lays the windows out, which are written and read."""
    workload, gpu = problem.workload, gpu_of(target)
    moved = workload.itemsize * (prod(workload.x_shape) + 2 * _windows(workload))
    return estimated_clocks(problem, config, gpu) + SECOND_KERNEL + moved / bytes_per_clock(gpu)


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
    sch = schedule_gemm(problem, config, window_elements)
    spread_over_grid(sch, sch.get_sblock("windows"))
    return sch
