"""The tiles of AMX that a convolution takes, and a model of their time.

The model was fitted to 491 configurations of 24 layers of ResNet-50 at batch 1, in uint8 and bfloat16, on two cores of
Granite Rapids, with weights that were not in the first two caches: its error is 0.2 in the logarithm (RMS).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, lcm, prod
from typing import Any

import msgspec
import tvm

from tvmconv.compute.dense.dot import is_row, with_rows_as_channels
from tvmconv.problem import Problem
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import DotInstruction, cpu_of, tile_instruction

from ...space import ceil_div, ceil_to, divisors, evenly, named, tile_sizes, wasted
from ..direct.register_tiles import STAGED_BYTES
from ..direct.tiles import TileConfig, blocks
from ..dot.tiles import band_of, plane, tasks_of, tile_of
from ..machine import PARALLEL_FLOPS
from ..template import threads_for_work
from .code import LINE_BYTES, TILE_ROWS, fits

LEAST_PRODUCT_CYCLES = 9.5
"""The least cycles until the next product of tiles may begin: it takes one for each pixel of a tile beyond that.

Measured in a loop of products alone; a product may add to the sums of the one before it without a wait.
"""

PIXEL_CYCLES = 0.5
"""The cycles that a pixel of a tile takes to be loaded, beside the products."""

WEIGHT_CYCLES = {"first": 0.6, "second": 1.15, "later": 11.0}
"""The cycles that a row of a tile of the weight takes, a line of the cache, by the cache that it comes from.

From the second on the loads of tiles hide little: a core waits for a line of the last cache or of memory.
"""

FIRST_BYTES = 24 * 1024
"""The bytes of the weight that are kept in the first cache, of 48 KB in all CPUs with AMX, beside those of pixels."""

OWN_CYCLES, SHARED_CYCLES = 9.0, 54.0
"""The cycles to stage a line of the cache: in a task for itself, and ahead for all cores, which read it from others."""

TASK_CYCLES = 150
"""The cycles of LDTILECFG and TILERELEASE, which a task begins and ends with."""

GATHER_CYCLES = 0.3
"""The cycles of an element that is staged from planes, one after the other, beside those of its line."""

FINISH_CYCLES = {"int32": 5.6, "float32": 1.5}
"""The cycles to finish a vector of sums and to store it, by their type."""

TRANSPOSE_CYCLES = 0.44
"""The cycles to transpose, finish and store an output in NCHW: as long as `cpu/dot` takes with tiles of two vectors."""


def instruction_of(problem: Problem, target: tvm.target.Target) -> DotInstruction:
    """Return the instruction that computes a problem."""
    row = tile_instruction(target, problem.workload.dtype)
    assert row is not None
    return row


def computed(problem: Problem, target: tvm.target.Target) -> Problem:
    """Return the problem that tiles compute: one with rows of windows as channels, where these fill no row of a tile.

    What a row of taps reads must be side by side once it is staged, with the zeros around a plane. Windows of one row
    stay as they are: their plane would be taken for a single row.
    """
    workload = problem.workload
    has_few_channels = workload.in_channels * workload.kernel[1] <= max_channels(instruction_of(problem, target))
    if workload.layout != "NCHW" or workload.kernel[1] == 1 or not has_few_channels:
        return problem
    by_rows = with_rows_as_channels(workload)
    return problem if is_row(by_rows) else msgspec.structs.replace(problem, workload=by_rows)


def max_channels(instruction: DotInstruction) -> int:
    """Return the input channels that a row of a tile holds."""
    return LINE_BYTES // 4 * instruction.terms


def step_channels(workload: ConvWorkload, instruction: DotInstruction) -> int:
    """Return the input channels of a step: those of the fewest steps, alike in all of them, in whole vectors."""
    limit, block, vector = max_channels(instruction), channel_block(workload.layout), 4 * instruction.terms
    unit = lcm(block, vector) if limit % lcm(block, vector) == 0 else vector
    if workload.in_channels < unit:
        unit = instruction.terms
    return ceil_to(evenly(workload.in_channels, limit), unit)


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
    """Return the numbers of pixels of a tile that are worth a trial: the most, that of equal tiles, divisors."""
    whole = (each for each in divisors(width, TILE_ROWS) if each > TILE_ROWS // 2)
    return tuple(sorted({min(width, TILE_ROWS), evenly(width, TILE_ROWS), *whole}))


def constraints(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return the tests that a configuration must pass, by name."""
    workload, instruction = problem.workload, instruction_of(problem, target)

    def one_vector(config: TileConfig) -> bool:
        return config.vector == instruction.lanes

    def whole_channels(config: TileConfig) -> bool:
        return config.channels % instruction.terms == 0 and config.channels <= max_channels(instruction)

    def registers(config: TileConfig) -> bool:
        return config.columns <= TILE_ROWS and fits(config.rows, config.vectors)

    def waste(config: TileConfig) -> bool:
        surplus = max(map(wasted, plane(workload), band_of(workload, config)))
        return surplus <= 2 and config.block <= max(64, 2 * workload.multiplier)

    def staging(config: TileConfig) -> bool:
        return bool(must_stage(workload, config)) <= config.staged <= 2

    return named(one_vector, whole_channels, registers, waste, staging)


def heuristics(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return tests that select legal configurations worth building, by name."""
    workload = problem.workload
    costs: dict[tuple[int, ...], float] = {}
    for config in tasks(problem, target):
        costs[shape(config)] = min(cycles(problem, config, target), costs.get(shape(config), inf))
    promising = {tile for tile, cost in costs.items() if cost <= 1.25 * min(costs.values())}

    def promising_tile(config: TileConfig) -> bool:
        return shape(config) in promising

    def staged_for_a_reason(config: TileConfig) -> bool:
        return config.staged == 0 or must_stage(workload, config)

    return named(promising_tile, staged_for_a_reason, threads_for_work(workload))


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
            limit = height if height > 1 else ceil_div(width, columns)
            for rows in range(1, min(3, limit) + 1):
                if fits(rows, vectors):
                    yield TileConfig(vectors, instruction.lanes, rows, columns, channels, 1, 0, parallel)


def tasks(problem: Problem, target: tvm.target.Target) -> Iterator[TileConfig]:
    """Yield all tiles with each number of them that a task may have, and each value of `staged`.

    What a task stages stays in the second cache, if that is possible with one row of tiles.
    """
    workload = problem.workload
    along_row = is_row(workload)
    for tile in tiles(problem, target):
        steps = ceil_div(plane(workload)[along_row], tile_of(workload, tile)[along_row])
        for count in tile_sizes(steps):
            config = replace(tile, tiles=count, staged=0)
            if not must_stage(workload, config):
                yield config
                continue
            for staged in (1, 2):
                config = replace(config, staged=staged)
                if count == staged == 1 or bytes_staged(problem, config, target) <= STAGED_BYTES:
                    yield config


def bytes_staged(problem: Problem, config: TileConfig, target: tvm.target.Target) -> int:
    """Return the bytes of an image's input that are staged at once."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    height, width = workload.padded_input
    if config.staged == 1:
        band = band_of(workload, config)
        if is_row(workload):
            height, width = 1, min(band[1], plane(workload)[1])
        else:
            height = min(height, (band[0] - 1) * workload.stride[0] + workload.window[0])
    return 4 // instruction.terms * depth(workload, config) * height * width


def cycles(problem: Problem, config: TileConfig, target: tvm.target.Target) -> float:
    """Return the cycles that an image takes on all cores together, those included in which some wait for others."""
    workload, instruction = problem.workload, instruction_of(problem, target)
    threads = int(target.attrs.get("num-cores", 1)) if config.parallel else 1
    rows = config.channels // instruction.terms  # of a tile of the weight
    steps = depth(workload, config) // config.channels * prod(workload.kernel)
    blocks_read = blocks(workload, config)
    tiles = blocks_read * prod(map(ceil_div, plane(workload), tile_of(workload, config)))
    sums, block_bytes = config.rows * config.vectors, LINE_BYTES * rows * config.vectors * steps

    weight = WEIGHT_CYCLES["first" if block_bytes <= FIRST_BYTES else "second"]
    step = sums * max(config.columns, LEAST_PRODUCT_CYCLES) + PIXEL_CYCLES * config.rows * config.columns
    step += weight * rows * config.vectors
    finish = FINISH_CYCLES[instruction.sums] * sums * config.columns
    if workload.out_layout == "NCHW":
        finish = TRANSPOSE_CYCLES * config.block * config.outputs
    working = tiles * (steps * step + finish)

    count = workload.batch * tasks_of(workload, config)
    if config.staged:
        is_private = config.staged == 1
        copied = bytes_staged(problem, config, target) * (tasks_of(workload, config) if is_private else 1)
        working += copied / LINE_BYTES * (OWN_CYCLES if is_private else SHARED_CYCLES)
        if workload.layout == "NCHW":
            working += copied / workload.itemsize * GATHER_CYCLES
    working += TASK_CYCLES * tasks_of(workload, config)

    readings = 1  # of the whole weight, by all cores; every template has the first
    if config.staged == 1 and blocks_read * block_bytes > cpu_of(target).l2_bytes:
        readings = count
    elif config.staged == 1 or blocks_read < threads:
        readings = min(threads, count)
    again = (readings - 1) * blocks_read * block_bytes / LINE_BYTES * WEIGHT_CYCLES["later"] / workload.batch
    return (working + again) * wasted(count, threads)
