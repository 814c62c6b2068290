"""Which tiles of a depthwise convolution are worth a trial on CUDA, the default, and what a cost model is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import tvm

from tvmconv.errors import NoValidConfigurationError
from tvmconv.problem import Problem
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, named, wasted
from .depthwise_tiles import (
    LEAST,
    Config,
    blocks,
    constraints,
    shared_bytes,
    whole_planes,
    window_elements,
)
from .gemm_model import BYTES_PER_CLOCK, START
from .machine import MULTIPROCESSORS

FULL_GPU_THREADS = 65536
"""What the default configuration takes for a full GPU: 512 threads on each of some 130 multiprocessors."""

BLOCK_THREADS = 128
NARROW = 8
"""Columns of a plane up to which a thread of the default configuration takes whole rows."""

WASTE = 1.15
"""How many outputs, in parts of those wanted, the default configuration may compute at the bottom of a plane."""


def supports(problem: Problem, target: tvm.target.Target) -> bool:
    """Support depthwise convolutions in NCHW."""
    return problem.is_depthwise and problem.workload.is_in_nchw


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that memory takes to move the operands once, with what whole blocks read and write in vain."""
    workload = problem.workload
    waste = prod(map(wasted, workload.output_size, (config.block_y, config.block_x)))
    return START + waste * workload.bytes_moved / BYTES_PER_CLOCK


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of what is left out."""
    return {
        "vector loads": replace(config, vector=1, load=1),
        "unrolling": replace(config, unroll=0, shared_input=True),
        "shared filter": replace(config, shared_filter=False),
    }


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """The configurations worth trying for a workload, legal on the target."""
    workload = problem.workload
    height, width = workload.output_size
    default = default_config(problem, target)

    def upto(limit: int, *values: int) -> set[int]:
        return {value for value in values if value <= limit}

    rows, columns = upto(height, 1, 2, 3, 4, 6, 7, 8), upto(width, 1, 2, 4, 7)
    whole_height = upto(64, *(ceil_div(height, n) for n in rows))
    whole_width = upto(64, *(ceil_div(width, n) for n in columns))
    # What of the input fits into registers belongs there; only what does not is staged.
    staged = default.shared_input
    knobs: dict[str, Iterable[Any]] = {
        "planes": {*whole_planes(workload, 64)},
        "threads_y": upto(2 * height - 1, 1, 2, 4, 8, 16) | whole_height,
        "threads_x": upto(2 * width - 1, 1, 4, 8, 16, 32, 56) | whole_width,
        "vthreads_y": upto(height, 1, 2) if staged else {1},
        "vthreads_x": upto(width, 1, 2) if staged else {1},
        "rows": rows,
        "columns": columns,
        "vector": upto(16 // workload.itemsize, 1, 2, 4),
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
    return Space(default, LEAST, values, constraints(workload, target), heuristics(workload))


def heuristics(workload: ConvWorkload) -> dict[str, Callable[[Config], bool]]:
    """Which legal configurations are worth building, by name; without them a space has some hundred times as many."""
    height, width = workload.output_size
    share = prod(workload.output_shape) / FULL_GPU_THREADS

    def widest_stores(config: Config) -> bool:
        return config.flat or config.columns == config.vector or width % config.columns != 0

    def neighbours_read_together(config: Config) -> bool:
        return config.flat or (config.columns <= 4 and config.threads_x > 1)

    def whole_warps(config: Config) -> bool:
        return config.threads <= 256 and wasted(config.threads, 32) <= 1.35

    def enough_threads(config: Config) -> bool:
        return config.threads >= 32 and blocks(workload, config) >= min(MULTIPROCESSORS, 512 * share)

    def little_waste(config: Config) -> bool:
        return wasted(height, config.block_y) <= 1.2 and wasted(width, config.block_x) <= 1.2

    def few_registers(config: Config) -> bool:
        return config.outputs <= 32

    def enough_work(config: Config) -> bool:
        return config.outputs >= min(4, share / 2)

    def one_stage(config: Config) -> bool:
        return not (config.shared_input and config.shared_filter)

    def one_way_of_striding(config: Config) -> bool:
        return config.vthreads_y * config.vthreads_x <= 2

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


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """A legal configuration that is reasonable for any workload.

    What was fast on an H100: a window in registers, read once by loads as wide as stores; one block as wide as the
    plane; all outputs of a channel in one thread. Planes too narrow for that go through shared memory as they lie. So
    does the tile of a window too large for registers, and one too large for both is read through the cache.
    """
    workload = problem.workload
    checks = constraints(workload, target).values()
    for config in _candidates(workload):
        if all(holds(config) for holds in checks):
            return config
    raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")


def _candidates(workload: ConvWorkload) -> Iterator[Config]:
    """Configurations for the default, the best first; not all are legal."""
    height, width = workload.output_size
    m, share = workload.multiplier, prod(workload.output_shape) // FULL_GPU_THREADS
    if width <= NARROW:
        for planes in reversed(whole_planes(workload, min(64, ceil_div(2 * BLOCK_THREADS, height)))):
            if planes * height >= 32:
                yield replace(
                    LEAST, planes=planes, threads_y=height, columns=width, unroll=2, shared_filter=True, flat=True
                )

    most = max(4, min(16, share))  # outputs of a thread, of one channel
    widest = 4 if share >= 32 else 2
    ways = ((False, 2, 4), (True, 2, 1), (True, 1, 1), (False, 2, 1), (True, 0, 1), (False, 0, 1))
    for shared, unroll, least in ways:
        for columns in (n for n in (4, 2, 1) if n <= widest and width % n == 0):
            threads_x = _threads(ceil_div(width, columns))
            heights = [n for n in range(1, 9) if least <= n * columns <= most and wasted(height, n) <= WASTE]
            for rows in reversed(heights or [1]):
                steps = ceil_div(height, rows)
                threads_y = ceil_div(steps, ceil_div(steps, max(1, BLOCK_THREADS // threads_x)))
                siblings = m if m <= 4 and m * rows * columns <= 32 else 1
                room = max(1, BLOCK_THREADS // (threads_x * threads_y)) * siblings
                for planes in reversed(whole_planes(workload, min(room, 64))):
                    for load in (columns, 1):
                        yield replace(
                            LEAST,
                            planes=planes,
                            threads_y=threads_y,
                            threads_x=threads_x,
                            rows=rows,
                            columns=columns,
                            vector=columns,
                            unroll=unroll,
                            shared_input=shared,
                            shared_filter=not shared and prod(workload.kernel) * m > 9,
                            load=load,
                            siblings=siblings,
                        )


def _threads(columns: int) -> int:
    """Threads for the columns of a row: all in one block if 64 do, and a power of two if that wastes little."""
    threads = ceil_div(columns, ceil_div(columns, 64))
    rounded = 1 << (threads - 1).bit_length()
    return rounded if rounded <= 1.2 * threads else threads


def features(problem: Problem, config: Config) -> dict[str, float]:
    """What a cost model should know beside the knobs, such that workloads can be compared; an H100 is assumed."""
    workload = problem.workload
    height, width = workload.output_size
    grid, shared = blocks(workload, config), shared_bytes(workload, config)
    taps, vthreads = prod(workload.kernel), config.vthreads_y * config.vthreads_x
    own = prod(workload.read_by((config.rows, config.columns))) * vthreads
    staged = prod(workload.read_by((config.block_y, config.block_x)))
    registers = 24 + config.outputs + window_elements(workload, config)
    warps = ceil_div(config.threads, 32)
    resident = max(1, min(32, 64 // warps, 227 * 1024 // (shared + 1024), 2048 // (warps * ceil_div(registers, 8) * 8)))
    waves = grid / (MULTIPROCESSORS * resident)
    run = min(width, config.threads_x * config.columns)
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
        "registers": registers,
        "warps_per_sm": min(warps * resident, grid * warps / MULTIPROCESSORS),
        "waves": waves,
        "last_wave": ceil_div(grid, MULTIPROCESSORS * resident) / waves,
        "blocks_per_sm": ceil_div(grid, MULTIPROCESSORS) * MULTIPROCESSORS / grid,
        "macs_per_load": config.outputs * taps / own,
        "halo": staged / (config.block_y * config.block_x),
        "outputs_per_sm": config.outputs * config.threads * min(resident, grid / MULTIPROCESSORS),
        "run_bytes": run * workload.itemsize,
        "rows_of_warp": max(1.0, 32 / config.threads_x),
        "taps": taps,
        "plane": height * width,
        "planes": workload.batch * workload.out_channels,
    }
