"""The tiles of AMX that a convolution takes, and a model of their time, by arithmetic: none of it was measured.

The cycles of instructions are those of the first CPUs that have them (Sapphire Rapids). That a product takes 16 is
published; the others were not looked up again in their source, Intel 64 and IA-32 Architectures Optimization Reference
Manual, chapter "Intel AMX".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import lcm, prod
from typing import Any

import tvm

from tvmconv.layout import channel_block
from tvmconv.problem import Problem
from tvmconv.targets import DotInstruction, cpu_of, tile_instruction
from tvmconv.workload import ConvWorkload

from ..space import ceil_div, ceil_to, divisors, evenly, named, tile_sizes, wasted
from .amx_code import LINE_BYTES, TILE_ROWS, fits
from .dot_tiles import COPY_CYCLES, band_of, plane, tasks_of, tile_features, tile_of
from .machine import PARALLEL_FLOPS, TURNS
from .register_tiles import STAGED_BYTES
from .tile_cost import STORE_CYCLES, TileConfig, blocks, weight_bandwidth

PRODUCT_CYCLES, SUM_CYCLES = 16, 52
"""The cycles until the next product of tiles may begin, and until a tile of sums can be added to again.

That a product of fewer rows or columns takes less is not counted on.
"""

LOAD_CYCLES, STORE_TILE_CYCLES = 8, 16
"""The cycles until the next load of a tile may begin, and the next store of one."""

TASK_CYCLES = 204 + 13
"""The cycles of LDTILECFG and TILERELEASE, which a task begins and ends with."""

GATHER_CYCLES = 1
"""The cycles of an element that is staged from planes: it is loaded and put into a vector by itself."""

FINISH_CYCLES = 4
"""The cycles to finish and store a vector of integers' sums: as long as `cpu/dot` takes with tiles of 16 vectors."""

TRANSPOSE_CYCLES = 0.44
"""The cycles to transpose, finish and store an output in NCHW: as long as `cpu/dot` takes with tiles of two vectors."""


def instruction_of(problem: Problem, target: tvm.target.Target) -> DotInstruction:
    """Return the instruction that computes a problem."""
    row = tile_instruction(target, problem.workload.dtype)
    assert row is not None
    return row


def most_channels(instruction: DotInstruction) -> int:
    """Return the input channels that a row of a tile holds."""
    return LINE_BYTES // 4 * instruction.terms


def step_channels(workload: ConvWorkload, instruction: DotInstruction) -> int:
    """Return the input channels of a step: those of the fewest steps, alike in all of them, in whole vectors."""
    most, block, vector = most_channels(instruction), channel_block(workload.layout), 4 * instruction.terms
    unit = lcm(block, vector) if most % lcm(block, vector) == 0 else vector
    if workload.in_channels < unit:
        unit = instruction.terms
    return ceil_to(evenly(workload.in_channels, most), unit)


def depth(workload: ConvWorkload, config: TileConfig) -> int:
    """Return the number of input channels, rounded up to whole steps."""
    return ceil_to(workload.in_channels, config.channels)


def must_stage(workload: ConvWorkload, config: TileConfig) -> bool:
    """Return whether the input cannot be read where it lies: tiles read channels side by side, of pixels that exist."""
    in_pixels = workload.layout == "NHWC" and workload.in_channels % config.channels == 0
    whole = in_pixels or channel_block(workload.layout) == config.channels
    ends = any(size % step for size, step in zip(plane(workload), band_of(workload, config), strict=True))
    return not whole or ends or any(workload.padding)


def knobs(problem: Problem, target: tvm.target.Target) -> dict[str, tuple[Any, ...]]:
    """Return the values of the knobs."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = plane(workload)
    return {
        "vectors": tuple(range(1, 7)),
        "vector": (instruction.lanes,),
        "rows": (1, 2, 3),
        "columns": columns_of(width),
        "channels": (step_channels(workload, instruction),),
        "tiles": tile_sizes(height if height > 1 else ceil_div(width, TILE_ROWS)),
        "staged": (0, 1, 2),
        "parallel": (True, False),
    }


def columns_of(width: int) -> tuple[int, ...]:
    """Return the numbers of pixels of a tile that are worth a trial: as many as can be, alike, or without a rest."""
    whole = (each for each in divisors(width, TILE_ROWS) if each > TILE_ROWS // 2)
    return tuple(sorted({min(width, TILE_ROWS), evenly(width, TILE_ROWS), *whole}))


def constraints(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return the tests that a configuration must pass, by name."""
    workload, instruction = problem.workload, instruction_of(problem, target)

    def one_vector(config: TileConfig) -> bool:
        return config.vector == instruction.lanes

    def whole_channels(config: TileConfig) -> bool:
        return config.channels % instruction.terms == 0 and config.channels <= most_channels(instruction)

    def registers(config: TileConfig) -> bool:
        return config.columns <= TILE_ROWS and fits(config.rows, config.vectors)

    def waste(config: TileConfig) -> bool:
        surplus = max(map(wasted, plane(workload), band_of(workload, config)))
        return surplus <= 2 and config.block <= max(64, 2 * workload.multiplier)

    def places(config: TileConfig) -> bool:
        return bool(must_stage(workload, config)) <= config.staged <= 2

    return named(one_vector, whole_channels, registers, waste, places)


def heuristics(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return tests that select legal configurations worth building, by name."""
    workload = problem.workload
    costs = {shape(config): cycles(problem, config, target) for config in tiles(problem, target)}
    promising = {tile for tile, cost in costs.items() if cost <= 1.25 * min(costs.values())}

    def promising_tile(config: TileConfig) -> bool:
        return shape(config) in promising

    def staged_for_a_reason(config: TileConfig) -> bool:
        return config.staged == 0 or must_stage(workload, config)

    def threads_for_work(config: TileConfig) -> bool:
        return config.parallel == (workload.flops >= PARALLEL_FLOPS)

    return named(promising_tile, staged_for_a_reason, threads_for_work)


def shape(config: TileConfig) -> tuple[int, ...]:
    """Return the numbers that make up the tiles."""
    return config.vectors, config.rows, config.columns


def tiles(problem: Problem, target: tvm.target.Target) -> Iterator[TileConfig]:
    """Yield the tiles that the registers hold, each with the rest of a legal configuration."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = plane(workload)
    channels, parallel = step_channels(workload, instruction), workload.flops >= PARALLEL_FLOPS
    for vectors in range(1, min(6, ceil_div(workload.out_channels, instruction.lanes)) + 1):
        for columns in columns_of(width):
            most = height if height > 1 else ceil_div(width, columns)
            for rows in range(1, min(3, most) + 1):
                if fits(rows, vectors):
                    tile = TileConfig(vectors, instruction.lanes, rows, columns, channels, 1, 0, parallel)
                    yield replace(tile, staged=2 * must_stage(workload, tile))


def best_tile(problem: Problem, target: tvm.target.Target) -> TileConfig:
    """Return the tiles that should take least time, the fewest loads among such, and as many as a task may have."""
    workload, instruction = problem.workload, instruction_of(problem, target)

    def cost(config: TileConfig) -> tuple[float, int]:
        return cycles(problem, config, target), config.rows + config.vectors

    best = min(tiles(problem, target), key=cost)
    (height, width), (rows, columns) = plane(workload), tile_of(workload, best)
    in_row = height == 1
    extent, step = (width, columns) if in_row else (height, rows)
    most, staged = ceil_div(extent, step), 2
    line_bytes = 4 // instruction.terms * depth(workload, best) * (1 if in_row else workload.padded_input[1])
    if line_bytes * (width if in_row else workload.padded_input[0]) > STAGED_BYTES:
        staged = 1
        lines = max(1, STAGED_BYTES // line_bytes - workload.window[0]) // workload.stride[0]
        most = max(1, min(most, lines // step))
    if best.parallel:
        beside = workload.batch * (1 if best.staged and staged == 1 else blocks(workload, best))
        most = max(1, min(most, ceil_div(extent, step) // ceil_div(TURNS, beside)))
    if best.staged:
        return replace(best, staged=staged, tiles=most)
    return replace(best, tiles=divisors(extent // step, most)[-1])


def cycles(problem: Problem, config: TileConfig, target: tvm.target.Target) -> float:
    """Return the cycles that a core should take for an image, by its units for products and loads and by its caches."""
    workload, instruction, cpu = problem.workload, instruction_of(problem, target), cpu_of(target)
    steps = depth(workload, config) // config.channels * prod(workload.kernel)
    several = prod(map(ceil_div, plane(workload), tile_of(workload, config)))
    sums, vectors = config.rows * config.vectors, config.vectors * config.outputs
    step_bytes = 4 * config.block * config.channels // instruction.terms
    reading = step_bytes / weight_bandwidth(steps * step_bytes, several, cpu)
    step = max(PRODUCT_CYCLES * sums, SUM_CYCLES, LOAD_CYCLES * (config.rows + config.vectors), reading)
    finish = STORE_TILE_CYCLES * sums + (FINISH_CYCLES if instruction.sums == "int32" else STORE_CYCLES) * vectors
    if workload.out_layout == "NCHW":
        finish = STORE_TILE_CYCLES * sums + TRANSPOSE_CYCLES * config.block * config.outputs
    staging = 0.0
    if config.staged:
        element = GATHER_CYCLES if workload.layout == "NCHW" else COPY_CYCLES
        staging = element * workload.in_channels * prod(workload.padded_input)
    working = blocks(workload, config) * several * (steps * step + finish)
    return working + staging + TASK_CYCLES * tasks_of(workload, config)


def features(problem: Problem, config: TileConfig, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    return tile_features(
        problem.workload, config, cycles(problem, config, target), channels=depth(problem.workload, config)
    )
