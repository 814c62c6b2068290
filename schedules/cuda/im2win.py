"""Convolution over im2win's windows on CUDA: a kernel lays the windows out, and the matrix product's columns read them.

As the im2win thesis has it (algorithms 2, 3 and 9): the windows are the input again, some R / stride times as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.im2win import window_elements
from tvmconv.workload import ConvWorkload

from ..space import Space
from .gemm_model import best_config, features, search_space
from .gemm_schedule import schedule_gemm, spread_over_grid
from .gemm_tiles import GemmConfig, ablations

__all__ = ["LEAST", "VERSION", "Config", "ablations", "default_config", "features", "schedule", "space"]

VERSION = 1


@dataclass(frozen=True)
class Config(GemmConfig):
    """The knobs, which are those of `GemmConfig`."""


LEAST = Config(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def space(workload: ConvWorkload, target: tvm.target.Target) -> Space[Config]:
    """The configurations that are worth a trial on this target."""
    return search_space(default_config(workload, target), LEAST, workload, target, _windows(workload))


def default_config(workload: ConvWorkload, target: tvm.target.Target) -> Config:
    """A legal configuration that is reasonable for any workload."""
    return Config(**vars(best_config(workload, target, _windows(workload))))


def _windows(workload: ConvWorkload) -> int:
    """Elements of the windows, which have whole strides of columns."""
    columns = workload.padded_input[1] + workload.stride[1]
    return prod(workload.x_shape[:2]) * workload.output_size[0] * workload.kernel[0] * columns


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled; the config must be legal."""
    sch = schedule_gemm(workload, config, window_elements)
    spread_over_grid(sch, sch.get_sblock("windows"))
    return sch
