"""A model of depthwise convolutions on CUDA: an estimate, tiles worth a trial, and features for a cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any

import tvm

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, named, wasted
from ..simt.model import START, bytes_per_clock
from ..tensor.model import mostly_largest
from .clocks import registers, resident_blocks
from .default import default_config
from .rules import full_gpu_threads
from .tiles import LEAST, Config, blocks, constraints, shared_bytes, whole_planes

THREAD_BYTES = 24
"""The bytes that memory moves in the time that a thread costs for itself.

On an H200 kernels of four outputs a thread took 1.1 to 2.2 times as long as those of sixteen (MobileNetV2, batch 32).
"""

MULTIPLY_ADDS = 51.0
"""The multiply-adds of a multiprocessor in a clock, of 128 at best: on an H200 windows from 5x5 to 31x31 in float16
took 0.8 to 1.05 of the time that this tells.
"""

STAGED = 15.0
"""The multiply-adds in the time that staging an element in shared memory takes, with its tests and the waiting.

It lies between two windows in float16 on an H200: 13x13 on planes of 7x7, which stages 400 elements for 49 outputs and
took 57 µs where multiply-adds alone told 35, and 31x31 on planes of 56x56, of which they told all.
"""


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take depthwise convolutions."""
    return None if problem.is_depthwise else "is for depthwise convolutions"


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that memory takes to move the operands once, with what whole blocks read and write in vain.

    Each thread adds some for itself. Large windows take longer, which multiply-adds bound, and the elements that are
    staged for them.
    """
    workload, gpu = problem.workload, gpu_of(target)
    waste = prod(map(wasted, workload.output_size, (config.block_y, config.block_x)))
    threads = prod(workload.output_shape) / config.outputs
    moved = waste * (workload.bytes_moved + THREAD_BYTES * threads)
    staged = config.shared_input * prod(workload.read_by((config.block_y, config.block_x)))
    staging = STAGED * staged * blocks(workload, config) * config.planes / workload.multiplier
    computed = (waste * workload.flops / 2 + staging) / (MULTIPLY_ADDS * gpu.multiprocessors)
    return START + mostly_largest(moved / bytes_per_clock(gpu), computed)


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of what is left out."""
    return {
        "vector loads": replace(config, store=1, load=1),
        "unrolling": replace(config, unroll=0, shared_input=True),
        "shared filter": replace(config, shared_filter=False),
    }


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations worth trying for a workload, legal on the target."""
    workload = problem.workload
    height, width = workload.output_size
    default = default_config(problem, target)
    wide = (4, 8) if height == 1 else ()  # for planes of one row, of which a thread has several vectors

    def upto(limit: int, *values: int) -> set[int]:
        return {value for value in values if value <= limit}

    rows, columns = upto(height, 1, 2, 3, 4, 6, 7, 8), upto(width, 1, 2, 4, 7, 8)
    whole_height = upto(64, *(ceil_div(height, n) for n in rows))
    whole_width = upto(64, *(ceil_div(width, n) for n in columns))
    # What the default stages may be staged, or read through registers.
    staged = default.shared_input
    knobs: dict[str, Iterable[Any]] = {
        "planes": {*whole_planes(workload, 64)},
        "threads_y": upto(2 * height - 1, 1, 2, 4, 8, 16) | whole_height,
        "threads_x": upto(2 * width - 1, 1, 4, 8, 16, 32, 56) | whole_width,
        "vthreads_y": upto(height, 1, 2) if staged else {1},
        "vthreads_x": upto(width, 1, 2, *wide) if staged or wide else {1},
        "thread_y": rows,
        "thread_x": columns,
        "store": upto(16 // workload.itemsize, 1, 2, 4, 8),
        "unroll": {default.unroll},
        "shared_input": {staged, False},
        "shared_filter": {False, True},
        "load": upto(16 // workload.itemsize, 1, 2, 4, 8),
        "siblings": {1, workload.multiplier},
        "flat": {False, True},
    }
    values: dict[str, tuple[Any, ...]] = {
        name: tuple(sorted({*several, getattr(default, name)})) for name, several in knobs.items()
    }
    return Space(default, LEAST, values, constraints(problem, target), heuristics(workload, gpu_of(target)))


def heuristics(workload: ConvWorkload, gpu: Gpu) -> dict[str, Callable[[Config], bool]]:
    """Return tests that select legal configurations worth building, by name.

    Without them a space has some hundred times as many configurations.
    """
    height, width = workload.output_size
    share = prod(workload.output_shape) / full_gpu_threads(gpu)

    def widest_stores(config: Config) -> bool:
        return config.flat or config.thread_x == config.store or width % config.thread_x != 0

    def neighbours_read_together(config: Config) -> bool:
        return config.flat or (
            config.thread_x <= (16 // workload.itemsize if height > 1 else 8) and config.threads_x > 1
        )

    def whole_warps(config: Config) -> bool:
        return config.threads <= 256 and wasted(config.threads, 32) <= 1.35

    def enough_threads(config: Config) -> bool:
        return config.threads >= 32 and blocks(workload, config) >= min(gpu.multiprocessors, 512 * share)

    def little_waste(config: Config) -> bool:
        return wasted(height, config.block_y) <= 1.2 and wasted(width, config.block_x) <= 1.2

    def few_registers(config: Config) -> bool:
        return config.outputs <= 32

    def enough_work(config: Config) -> bool:
        return config.outputs >= min(4, share / 2)

    def one_stage(config: Config) -> bool:
        return not (config.shared_input and config.shared_filter)

    def one_way_of_striding(config: Config) -> bool:
        return config.vthreads_y * config.vthreads_x <= (2 if height > 1 else 8)

    return named(
        widest_stores,
        neighbours_read_together,
        whole_warps,
        enough_threads,
        little_waste,
        few_registers,
        enough_work,
        one_stage,
        one_way_of_striding,
    )


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload, gpu = problem.workload, gpu_of(target)
    height, width = workload.output_size
    grid, shared = blocks(workload, config), shared_bytes(workload, config)
    taps, vthreads = prod(workload.kernel), config.vthreads_y * config.vthreads_x
    own = prod(workload.read_by((config.thread_y, config.thread_x))) * vthreads
    staged = prod(workload.read_by((config.block_y, config.block_x)))
    warps, resident = ceil_div(config.threads, 32), resident_blocks(workload, config, gpu)
    waves = grid / (gpu.multiprocessors * resident)
    run = min(width, config.threads_x * config.thread_x)
    return {
        "threads": config.threads,
        "idle_lanes": warps * 32 / config.threads,
        "blocks": grid,
        "outputs": config.outputs,
        "vthreads": vthreads,
        "block_x": config.block_x,
        "block_y": config.block_y,
        "waste_x": wasted(width, config.block_x),
        "waste_y": wasted(height, config.block_y),
        "waste": wasted(width, config.block_x) * wasted(height, config.block_y),
        "shared_bytes": shared,
        "registers": registers(workload, config),
        "warps_per_sm": min(warps * resident, grid * warps / gpu.multiprocessors),
        "waves": waves,
        "last_wave": ceil_div(grid, gpu.multiprocessors * resident) / waves,
        "blocks_per_sm": ceil_div(grid, gpu.multiprocessors) * gpu.multiprocessors / grid,
        "macs_per_load": config.outputs * taps / own,
        "halo": staged / (config.block_y * config.block_x),
        "outputs_per_sm": config.outputs * config.threads * min(resident, grid / gpu.multiprocessors),
        "run_bytes": run * workload.itemsize,
        "rows_of_warp": max(1.0, 32 / config.threads_x),
        "taps": taps,
        "plane": height * width,
        "planes": workload.batch * workload.out_channels,
    }
