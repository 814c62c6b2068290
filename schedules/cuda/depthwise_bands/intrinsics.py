"""The CUDA function that multiplies rows of taps by columns of the input on tensor cores: see `device.cuh`."""

from __future__ import annotations

from tvmconv.compute.depthwise.bands import BAND, in_planes, lines_read, reach, surplus
from tvmconv.problem import Problem
from tvmconv.targets.device_code import function, included

from ..tensor.intrinsics import TYPES
from ..tensor.tiles import tf32_products
from .tiles import Config, line_bytes, plane_bytes, taps_bytes


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    workload = in_planes(problem.workload)
    image = config.channels * plane_bytes(workload, config)
    tile = config.images, config.block_x // BAND, config.warps_y, line_bytes(workload, config), image
    windows = taps_bytes(workload), *workload.kernel, reach(workload), surplus(workload)
    rows, columns = lines_read(workload, config.tile)
    read = rows[0], len(rows), columns[0], len(columns)
    has_whole_planes = config.block_y >= workload.output_size[0]
    ends = (workload.padding[0], workload.height) if has_whole_planes else (0, 0)
    name = function("bands_product", TYPES[workload.dtype], tf32_products(problem), *tile, *windows, *read, *ends)
    return name, included("schedules/cuda/depthwise_bands/device.cuh")
