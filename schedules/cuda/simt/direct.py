"""Direct convolution on CUDA: the columns of the matrix product are read from the input where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.dense.direct import input_elements
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from ..gemm.schedule import schedule_gemm
from ..gemm.tiles import GemmConfig
from . import Simt


@dataclass(frozen=True)
class Config(GemmConfig):
    """The knobs, which are those of `GemmConfig`."""


class Direct(Simt):
    """Direct convolution on CUDA cores."""

    VERSION = 2
    LEAST = Config(**vars(Simt.LEAST))

    def elements(self, workload: ConvWorkload) -> int:
        return prod(workload.x_shape)

    def schedule(self, problem: Problem, config: GemmConfig, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation; the config must be legal."""
        return schedule_gemm(problem, config, input_elements)


template = Direct()
