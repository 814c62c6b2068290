"""The CUDA functions that multiply rows of taps by whole planes on tensor cores, and store them: see `device.cuh`."""

from __future__ import annotations

from math import prod

from tvmconv.compute.depthwise.planes import eights, neighbours, side_by_side
from tvmconv.problem import Problem
from tvmconv.targets.device_code import function, included

from ..tensor.intrinsics import TYPES
from .tiles import Config, channels_of, image_elements, pixel_lanes, store_lanes

SOURCE = included("schedules/cuda/depthwise_planes/device.cuh")


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    workload = problem.workload
    (top, left, _, _), pixel = workload.padding, pixel_lanes(config) if workload.layout == "NHWC" else 1
    tile = config.images, side_by_side(workload, config.images), neighbours(workload), *eights(workload)
    plane = image_elements(workload, config), pixel, workload.height, workload.width
    return function("planes_product", TYPES[workload.dtype], *tile, *plane, *workload.kernel, top, left), SOURCE


def store_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that stores the outputs of a block."""
    workload, pixels = problem.workload, prod(problem.workload.output_size)
    itemsize = workload.output_storage.itemsize
    runs, run = (pixels, itemsize) if workload.layout == "NHWC" else (1, pixels * itemsize)
    run *= channels_of(workload, config)
    staged_pitch = pixel_lanes(config) * itemsize if workload.layout == "NHWC" else run
    pitches = staged_pitch, config.threads, workload.out_channels * itemsize
    vector = store_lanes(workload, config) * itemsize
    return function("store_runs", config.images, runs, run, *pitches, vector, itemsize), SOURCE
