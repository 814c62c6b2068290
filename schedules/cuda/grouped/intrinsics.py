"""The CUDA function that multiplies pixels of a group by its weights on tensor cores: see `device.cuh`."""

from __future__ import annotations

from tvmconv.compute.tensor.grouped_tiles import unit_outputs
from tvmconv.problem import Problem
from tvmconv.targets.device_code import function, included

from ..tensor.intrinsics import TYPES
from .tiles import Config, pixel_bytes


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a group's products to a thread's sums."""
    workload = problem.workload
    sizes = config.rows, config.columns, unit_outputs(workload) // 8, *pixel_bytes(workload, config)
    windows = *workload.kernel, *workload.stride, *workload.dilation, workload.w_shape[1]
    name = function("grouped_product", TYPES[workload.dtype], *sizes, *windows)
    return name, included("schedules/cuda/grouped/device.cuh")
