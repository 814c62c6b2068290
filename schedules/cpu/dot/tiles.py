"""The tiles of convolutions of integers, which add up products of channels side by side, and a model of their time."""

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
from ..direct.tile_cost import FINISH_CYCLES, STACK_BYTES, STORE_CYCLES, TileConfig, blocks, weight_bandwidth
from ..machine import PARALLEL_FLOPS

CHANNELS = 16
"""The input channels of the innermost loop, at most: few enough for LLVM to unroll."""

VECTOR_CYCLES, INPUT_CYCLES, SIGN_CYCLES = 0.13, 0.12, 0.15
"""The cycles of a vector of the weight, and of an input in all lanes, beside the sums; and those of another sign bit.

Fitted on Zen 4, where tiles of 4 vectors and 4 inputs are faster than those of 2 and 8, and 2 and 4 than 4 and 2.
"""

COPY_CYCLES, GATHER_CYCLES = 0.1, 0.5
"""The cycles of an element that is staged: where channels are side by side already, and from planes."""

FINISH_TILE_CYCLES = 0.25
"""The cycles to finish a tile of integers' sums and to store them, for each pair of its vectors.

A core finishes few vectors while it sums the next tile's products, and waits for many. Fitted on Zen 4: tiles of 8
vectors are up to a quarter faster than those of 16 for 16 to 64 input channels, and as fast for many; with sums of
bfloat16 products they are not.
"""


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


def channel_steps(workload: ConvWorkload, instruction: DotInstruction, most: int) -> tuple[int, ...]:
    """Return the numbers of input channels that the innermost loop may run over."""
    terms = instruction.terms
    whole = depth(workload, terms)
    block = channel_block(workload.layout)
    return tuple(terms * each for each in divisors((whole if block == 1 else block) // terms, max(1, most // terms)))


def constraints(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return the tests that a configuration must pass, by name."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = plane(workload)
    most_channels = channel_steps(workload, instruction, depth(workload, instruction.terms))

    def one_vector(config: TileConfig) -> bool:
        return config.vector == instruction.lanes

    def whole_channels(config: TileConfig) -> bool:
        return config.channels in most_channels

    def registers(config: TileConfig) -> bool:
        return config.vectors * config.outputs <= cpu_of(target).registers

    def waste(config: TileConfig) -> bool:
        surplus = max(map(wasted, (height, width), band_of(workload, config)))
        return surplus <= 2 and config.block <= max(64, 2 * workload.multiplier)

    def places(config: TileConfig) -> bool:
        return bool(must_stage(workload, instruction)) <= config.staged <= 2

    def one_row(config: TileConfig) -> bool:
        return config.rows == 1 or not is_row(workload)

    return named(one_vector, whole_channels, registers, waste, places, one_row)


def heuristics(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return tests that select legal configurations worth building, by name."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    costs = {shape(config): cycles(problem, config, target) for config in register_tiles(problem, target)}
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
        most = max(1, min(registers, cpu_of(target).registers - 2 - vectors) // vectors)
        for columns in range(1, min(width, most) + 1):
            for rows in range(1, min(height, most // columns if columns == width else 1) + 1):
                yield TileConfig(vectors, instruction.lanes, rows, columns, instruction.terms, 1, staged, parallel)


def best_tile(problem: Problem, target: tvm.target.Target) -> TileConfig:
    """Return the register tile that should take least time, with the extent of its innermost loop."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    best = min(register_tiles(problem, target), key=lambda config: cycles(problem, config, target))
    best = replace(best, channels=channel_steps(workload, instruction, CHANNELS)[-1])
    height, width = plane(workload)
    if is_row(workload):
        steps = ceil_div(width, best.columns)
        return replace(best, tiles=max(1, min(steps, ceil_div(steps * workload.batch, TURNS))))
    row_bytes = 4 // instruction.terms * workload.in_channels * workload.padded_input[1]
    if not best.staged or row_bytes * workload.padded_input[0] <= STAGED_BYTES:
        staged, most = 2 * best.staged, height
    else:
        staged = 1
        most = max(1, STAGED_BYTES // row_bytes - workload.window[0]) // workload.stride[0]
    rows = max(1, min(most, ceil_div(height * workload.batch, TURNS)))
    return replace(best, staged=staged, tiles=max(1, rows // best.rows))


def cycles(problem: Problem, config: TileConfig, target: tvm.target.Target) -> float:
    """Return the cycles that a core takes for an image, by its units for products and loads and by its caches."""
    workload, instruction, cpu = problem.workload, instruction_of(problem, target), cpu_of(target)
    height, width = plane(workload)
    steps = depth(workload, instruction.terms) // instruction.terms * prod(workload.kernel)
    tiles = ceil_div(height, config.rows) * ceil_div(width, config.columns)
    vector_bytes = 4 * config.block
    weight_bytes = steps * vector_bytes
    sums = config.vectors * config.outputs
    products = sums * (cpu.half_products if instruction.sums == "float32" else 1 if instruction.adds else 2)
    units = max(products, config.vectors + config.outputs) / cpu.fma_units
    step = max(units, cpu.fma_latency, vector_bytes / weight_bandwidth(weight_bytes, tiles, cpu))
    signed = not config.staged and instruction.terms == 4 and workload.dtype != instruction.first
    step += VECTOR_CYCLES * config.vectors + (INPUT_CYCLES + SIGN_CYCLES * signed) * config.outputs
    finish = FINISH_TILE_CYCLES * sums**2 if instruction.sums == "int32" else STORE_CYCLES * sums
    if workload.out_layout == "NCHW":
        finish = FINISH_CYCLES * config.vectors * config.block * config.outputs
    staging = 0.0
    if config.staged:
        element = GATHER_CYCLES if workload.layout == "NCHW" else COPY_CYCLES
        staging = element * workload.in_channels * prod(workload.padded_input)
    return blocks(workload, config) * tiles * (steps * step + finish) + staging


def features(problem: Problem, config: TileConfig, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    return tile_features(workload, config, cycles(problem, config, target), channels=depth(workload, instruction.terms))


def tile_features(workload: ConvWorkload, config: TileConfig, cost: float, channels: int) -> dict[str, float]:
    """Return the features of tiles that take so many cycles for input channels that are rounded up."""
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
