"""The tiles of convolutions of integers, which add up products of channels side by side, and their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import tvm

from tvmconv.compute.dense.dot import depth, is_row
from tvmconv.problem import Problem
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import DotInstruction, cpu_of, dot_instruction
from tvmconv.targets.devices import TURNS

from ...space import ceil_div, divisors, named, tile_sizes, wasted
from ..direct.register_tiles import STAGED_BYTES, shape
from ..direct.tiles import TileConfig, blocks, row_pieces
from ..machine import PARALLEL_FLOPS, STACK_BYTES
from ..model import Counts, Read, allocations, by_cache, operands, packed_weight, pieces, spilled, threads_of

CHANNELS = 16
"""The input channels of the innermost loop, at most: few enough for LLVM to unroll."""


def instruction_of(problem: Problem, target: tvm.target.Target) -> DotInstruction:
    """Return the instruction that computes a problem."""
    row = dot_instruction(target, problem.workload.dtype)
    assert row is not None
    return row


def plane(workload: ConvWorkload) -> tuple[int, int]:
    """Return the rows and columns of the output as they are tiled."""
    height, width = workload.output_size
    return (1, height * width) if is_row(workload) else (height, width)


def tile_of(workload: ConvWorkload, config: TileConfig) -> tuple[int, int]:
    """Return the rows and columns of a tile: in a plane that is one row its rows lie side by side."""
    return (1, config.outputs) if is_row(workload) else (config.rows, config.columns)


def band_of(workload: ConvWorkload, config: TileConfig) -> tuple[int, int]:
    """Return the rows of a task, and the columns that come at once: in a plane that is one row those of a task."""
    rows, columns = tile_of(workload, config)
    return (1, columns * config.tiles) if is_row(workload) else (rows * config.tiles, columns)


def tasks_of(workload: ConvWorkload, config: TileConfig) -> int:
    """Return the number of tasks for an image."""
    along_row = is_row(workload)
    bands = ceil_div(plane(workload)[along_row], band_of(workload, config)[along_row])
    return bands if config.staged == 1 else bands * blocks(workload, config)


def must_stage(workload: ConvWorkload, instruction: DotInstruction) -> bool:
    """Return whether the input cannot be read where it lies."""
    converted = instruction.first == "int16"
    planes = workload.layout == "NCHW" and instruction.terms > 1
    whole = depth(workload, instruction.terms) == workload.w_shape[1]
    return converted or planes or any(workload.padding) or not whole


def knobs(problem: Problem, target: tvm.target.Target) -> dict[str, tuple[Any, ...]]:
    """Return the values of the knobs."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = plane(workload)
    return {
        "vectors": tuple(range(1, 7)),
        "vector": (instruction.lanes,),
        "rows": tuple(rows for rows in range(1, 9) if rows <= height),
        "columns": tuple(range(1, min(width, 28) + 1)),
        "channels": channel_steps(workload, instruction, 64),
        "tiles": tile_sizes(height if height > 1 else ceil_div(width, 4)),
        "staged": (0, 1, 2),
        "parallel": (True, False),
    }


def channel_steps(workload: ConvWorkload, instruction: DotInstruction, limit: int) -> tuple[int, ...]:
    """Return the numbers of input channels that the innermost loop may run over."""
    terms = instruction.terms
    whole = depth(workload, terms)
    block = channel_block(workload.layout)
    return tuple(terms * each for each in divisors((whole if block == 1 else block) // terms, max(1, limit // terms)))


def constraints(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return the tests that a configuration must pass, by name."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = plane(workload)
    channel_choices = channel_steps(workload, instruction, depth(workload, instruction.terms))

    def one_vector(config: TileConfig) -> bool:
        return config.vector == instruction.lanes

    def whole_channels(config: TileConfig) -> bool:
        return config.channels in channel_choices

    def registers(config: TileConfig) -> bool:
        return config.vectors * config.outputs <= cpu_of(target).registers

    def waste(config: TileConfig) -> bool:
        surplus = max(map(wasted, (height, width), band_of(workload, config)))
        return surplus <= 2 and config.block <= max(64, 2 * workload.multiplier)

    def staging(config: TileConfig) -> bool:
        return bool(must_stage(workload, instruction)) <= config.staged <= 2

    def one_row(config: TileConfig) -> bool:
        return config.rows == 1 or not is_row(workload)

    return named(one_vector, whole_channels, registers, waste, staging, one_row)


def heuristics(
    problem: Problem, target: tvm.target.Target, estimate: Callable[[TileConfig], float]
) -> dict[str, Callable[[TileConfig], bool]]:
    """Return tests that select legal configurations worth building, by name; `estimate` is that of a tile."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    costs = {shape(config): estimate(config) for config in register_tiles(problem, target)}
    promising = {tile for tile, cost in costs.items() if cost <= 1.25 * min(costs.values())}

    def promising_tile(config: TileConfig) -> bool:
        return shape(config) in promising

    def staged_for_a_reason(config: TileConfig) -> bool:
        return config.staged == 0 or must_stage(workload, instruction)

    def threads_for_work(config: TileConfig) -> bool:
        return config.parallel == (workload.flops >= PARALLEL_FLOPS)

    return named(promising_tile, staged_for_a_reason, threads_for_work)


def register_tiles(problem: Problem, target: tvm.target.Target) -> Iterator[TileConfig]:
    """Yield the tiles that registers hold beside a weight for each vector, an input and a constant."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = plane(workload)
    staged = int(must_stage(workload, instruction))
    parallel = workload.flops >= PARALLEL_FLOPS
    registers = min(cpu_of(target).registers - 2, STACK_BYTES // (4 * instruction.lanes))
    for vectors in range(1, min(6, ceil_div(workload.multiplier, instruction.lanes)) + 1):
        limit = max(1, min(registers, cpu_of(target).registers - 2 - vectors) // vectors)
        for columns in range(1, min(width, limit) + 1):
            for rows in range(1, min(height, limit // columns if columns == width else 1) + 1):
                yield TileConfig(vectors, instruction.lanes, rows, columns, instruction.terms, 1, staged, parallel)


def with_tasks(problem: Problem, tile: TileConfig, target: tvm.target.Target) -> TileConfig:
    """Return the configuration of a register tile, with the extent of its innermost loop and the tiles of a task."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    config = replace(tile, channels=channel_steps(workload, instruction, CHANNELS)[-1])
    height, width = plane(workload)
    if is_row(workload):
        steps = ceil_div(width, config.columns)
        return replace(config, tiles=max(1, min(steps, ceil_div(steps * workload.batch, TURNS))))
    row_bytes = 4 // instruction.terms * workload.in_channels * workload.padded_input[1]
    if not config.staged or row_bytes * workload.padded_input[0] <= STAGED_BYTES:
        staged, limit = 2 * config.staged, height
    else:
        staged = 1
        limit = max(1, STAGED_BYTES // row_bytes - workload.window[0]) // workload.stride[0]
    rows = max(1, min(limit, ceil_div(height * workload.batch, TURNS)))
    return replace(config, staged=staged, tiles=max(1, rows // config.rows))


def counts(problem: Problem, config: TileConfig, target: tvm.target.Target) -> Counts:
    """Return the work of the kernel; a pair of products takes two instructions where none adds to a sum."""
    workload, instruction, cpu = problem.workload, instruction_of(problem, target), cpu_of(target)
    steps_of_sum = depth(workload, instruction.terms) // instruction.terms * prod(workload.kernel)
    tasks, (band_rows, band_columns) = workload.batch * tasks_of(workload, config), band_of(workload, config)
    (height, width), vectors = plane(workload), config.vectors * pieces(config.vector, cpu)
    sums = vectors * config.outputs
    bands = ceil_div(width, band_columns) if is_row(workload) else ceil_div(height, band_rows)
    tiles = workload.batch * blocks(workload, config) * bands * config.tiles
    tiles *= 1 if is_row(workload) else ceil_div(width, config.columns)
    steps, block_bytes = tiles * steps_of_sum, 4 * config.block * steps_of_sum
    instructions = cpu.half_products if instruction.sums == "float32" else 1 if instruction.adds else 2
    staged = 0.0
    if config.staged:
        again = workload.read_by((band_rows, 1))[0] / (band_rows * workload.stride[0]) if config.staged == 1 else 1.0
        staged = again * workload.batch * workload.in_channels * prod(workload.padded_input)
    is_nchw, transposes = workload.layout == "NCHW", workload.out_layout == "NCHW"
    signed = not config.staged and instruction.terms == 4 and workload.dtype != instruction.first
    return Counts(
        tasks=tasks if config.parallel else 1,
        threads=threads_of(target, config.parallel),
        loops=(1 + (not problem.constant_weight) + (config.staged == 2)) * config.parallel,
        multiplied=steps * sums * instructions,
        loaded=steps * vectors,
        chained=steps,
        broadcast=steps * config.outputs * (1 + signed),
        spilled=spilled(steps, config.vectors * (config.outputs + 1) + 1, cpu),
        allocated=allocations(tiles, 4 * config.block * config.outputs),
        stored=tiles * (row_pieces(config, cpu) if transposes else sums),
        transposed=tiles * sums * transposes,
        paired=tiles * sums**2,
        copied=0.0 if is_nchw else staged * 4 / instruction.terms / cpu.unit_bytes,
        moved=staged * is_nchw,
        packed=packed_weight(problem),
        **by_cache(cpu, *operands(problem), Read(tiles * block_bytes, block_bytes)),
    )


def tile_features(workload: ConvWorkload, config: TileConfig, cost: float, channels: int) -> dict[str, float]:
    """Return the features of tiles that take `cost` cycles; `channels` is the number of input channels, rounded up."""
    height, width = plane(workload)
    taps, band = prod(workload.kernel), band_of(workload, config)
    return {
        "tile": config.vectors * config.outputs,
        "block_read": channel_block(workload.layout),
        "block_written": channel_block(workload.out_layout),
        "loads": (config.vectors + config.outputs) / (config.vectors * config.outputs),
        "waste_y": wasted(height, band[0]),
        "waste_x": wasted(width, band[1]),
        "waste_channels": wasted(workload.multiplier, config.block),
        "weight_bytes": config.block * channels * taps,
        "chunk_bytes": config.block * config.channels * taps,
        "cycles": cost,
        "tasks": workload.batch * tasks_of(workload, config),
        "reduction": channels * taps,
        "taps": taps,
        "plane": height * width,
        "out_channels": workload.out_channels,
    }
