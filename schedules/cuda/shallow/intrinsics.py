"""The CUDA function that multiplies windows of few channels by weights on tensor cores: see `device.cuh`."""

from __future__ import annotations

from tvmconv.compute.tensor.shallow_tiles import EIGHT, pixel_channels
from tvmconv.problem import Problem
from tvmconv.targets.device_code import function, included

from ..tensor.intrinsics import TYPES
from .tiles import Config, line_bytes


def product_function(problem: Problem, config: Config) -> tuple[str, str, int]:
    """Return the name and the source of the function that adds a tile's products to a thread's sums.

    It gets the addresses of all pixels and weights of a block, whose last three dimensions they are.
    """
    workload = problem.workload
    tile = config.warps_n, config.rows, config.columns, config.outputs // EIGHT, line_bytes(workload, config)
    windows = *workload.kernel, *workload.stride, pixel_channels(workload)
    name = function("shallow_product", TYPES[workload.dtype], *tile, *windows)
    return name, included("schedules/cuda/shallow/device.cuh"), 3
