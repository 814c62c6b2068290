"""Convolution over im2win's windows on CUDA: a kernel lays the windows out, and the matrix product's columns read them.

As the im2win thesis has it (algorithms 2, 3 and 9): the windows are the input again, some R / stride times as large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.dense.im2win import window_elements
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import gpu_of

from ..gemm.schedule import schedule_gemm, spread_over_grid
from ..gemm.tiles import GemmConfig
from ..model import Counts
from . import Simt


@dataclass(frozen=True)
class Config(GemmConfig):
    """The knobs, which are those of `GemmConfig`."""


class Im2win(Simt):
    """Convolution over im2win's windows on CUDA cores."""

    LEAST = Config(**vars(Simt.LEAST))

    def elements(self, workload: ConvWorkload) -> int:
        """Return the number of elements of the windows, which have whole strides of columns."""
        columns = workload.padded_input[1] + workload.stride[1]
        return prod(workload.x_shape[:2]) * workload.output_size[0] * workload.kernel[0] * columns

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take the convolutions of `direct` whose windows TVM can count in 32 bits."""
        if found := super().obstacle(problem, target):
            return found
        windows = self.elements(problem.workload)
        return None if windows < 2**31 else "takes windows of fewer than 2^31 elements together"

    def counts(self, problem: Problem, config: GemmConfig, target: tvm.target.Target) -> Counts:
        """Return the work of `direct`, and that of the kernel that lays the windows out."""
        workload, counts = problem.workload, super().counts(problem, config, target)
        windows, image = self.elements(workload) * workload.itemsize, prod(workload.x_shape) * workload.itemsize
        total = workload.bytes_moved - image + windows
        return replace(
            counts,
            moved=0.0 if total <= gpu_of(target).l2_room else float(total),
            kernels=counts.kernels + 1,
            beside=counts.beside + image + windows,
        )

    def schedule(self, problem: Problem, config: GemmConfig, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation; the config must be legal."""
        sch = schedule_gemm(problem, config, window_elements)
        spread_over_grid(sch, sch.get_sblock("windows"))
        return sch


template = Im2win()
