"""Code that the CPU schedules of convolutions share: tiles of outputs that are summed in registers.

Vectors run over output channels. Each weight vector that is loaded serves all outputs of the tile, and each input that
is broadcast all of its vectors of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv.problem import Problem
from tvmconv.problem.layout import channel_block, has_channels_last
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import TURNS, cpu_of

from ...open_sizes import tiles_of_open_rows
from ...space import ceil_div, divisors, named, tile_sizes, wasted
from ..machine import LINE_BYTES, PARALLEL_FLOPS, staged_bytes
from ..template import threads_for_work
from .tiles import TileConfig, blocks
from .transposition import has_transposition, transposition

T = TypeVar("T", bound="TileConfig")

CHANNELS, LARGE_KERNEL = 16, 32
"""The input channels of the innermost loop, and the most taps of a kernel for which it has more than one.

They are few enough for their rows to stay in the first cache while the taps go over them, and too many for LLVM to
unroll, which would keep inputs for the next taps in registers that there are not. A kernel of more taps goes over the
rows of one channel at a time. Channels that are in blocks lie side by side: there it goes over a block.
"""

MAX_VECTORS = 6
"""The most vectors of output channels of a tile."""

MAX_ROWS = 8
"""The most rows of a tile: each is a separate stream of memory, which in NHWC may be in a separate page."""

SPARE = {16: 4, 32: 1}
"""The number of registers that sums leave free, by the number of registers.

Of few registers LLVM takes some for reading ahead, and sums would be stored.
"""

STAGED_BYTES = 512 * 1024
"""The bytes that the default configuration aims to stage for a task, so that they stay in the second cache."""


def tile_knobs(workload: ConvWorkload, target: tvm.target.Target) -> dict[str, tuple[Any, ...]]:
    """Return the values of the knobs."""
    height, width = workload.output_size
    block = channel_block(workload.layout)
    return {
        "vectors": tuple(range(1, MAX_VECTORS + 1)),
        "vector": (lanes_of(workload, target),),
        "rows": tuple(range(1, min(height, MAX_ROWS) + 1)),
        "columns": tuple(range(1, min(width, 28) + 1)),
        "channels": divisors(workload.w_shape[1], 64) if block == 1 else divisors(block, block),
        "tiles": tile_sizes(height),
        "staged": (0, 1, 2),
        "parallel": (True, False),
    }


def constraints(workload: ConvWorkload, target: tvm.target.Target) -> dict[str, Callable[[TileConfig], bool]]:
    """Return the tests that a configuration must pass, by name."""

    def whole_channels(config: TileConfig) -> bool:
        return workload.w_shape[1] % config.channels == 0

    def registers(config: TileConfig) -> bool:
        vectors = config.vectors * ceil_div(config.vector, cpu_of(target).lanes)
        return config.vector <= 64 and vectors * config.outputs <= cpu_of(target).registers

    def waste(config: TileConfig) -> bool:
        return max(surplus(workload, config)) <= 2 and config.block <= max(64, 2 * workload.multiplier)

    def staging(config: TileConfig) -> bool:
        return config.staged <= 2

    def stored_blocks(config: TileConfig) -> bool:
        return channel_block(workload.out_layout) in (1, config.vector)

    return named(whole_channels, registers, waste, staging, stored_blocks)


def heuristics(
    workload: ConvWorkload, target: tvm.target.Target, estimate: Callable[[TileConfig], float]
) -> dict[str, Callable[[TileConfig], bool]]:
    """Return tests that select legal configurations worth building, by name; `estimate` is that of a tile."""
    costs = {shape(config): estimate(config) for config in register_tiles(workload, target)}
    promising = {tile for tile, cycles in costs.items() if cycles <= 1.25 * min(costs.values())}

    def promising_tile(config: TileConfig) -> bool:
        return shape(config) in promising

    def padding_is_staged(config: TileConfig) -> bool:
        return config.staged > 0 or not any(workload.padding)

    def tiles_for_staging(config: TileConfig) -> bool:
        return config.tiles == 1 or config.staged == 1

    return named(promising_tile, padding_is_staged, tiles_for_staging, threads_for_work(workload))


def innermost_channels(workload: ConvWorkload) -> int:
    """Return the input channels of the innermost loop of a default configuration."""
    if (block := channel_block(workload.layout)) > 1:
        return block
    return divisors(workload.w_shape[1], CHANNELS if prod(workload.kernel) <= LARGE_KERNEL else 1)[-1]


def ablations(config: T) -> dict[str, T]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one.

    Without the micro-kernel registers hold a single vector of outputs. Not all are legal for every workload, or differ
    from the configuration.
    """
    return {
        "micro-kernel": replace(config, vectors=1, rows=1, columns=1, tiles=config.rows * config.tiles),
        "vectors": replace(config, vector=1),
        "staging": replace(config, staged=0, tiles=1),
        "threads": replace(config, parallel=False),
    }


def tiles_to_stage(problem: Problem, config: TileConfig, row_bytes: int) -> int:
    """Return the tiles of a task, such that it stages not too much, and tasks are enough.

    A row of input takes `row_bytes`. At least half of the rows that a task stages are no other task's, if it is one of
    dilated windows.
    """
    workload = problem.workload
    window, stride = workload.window[0], workload.stride[0]
    rows = max(STAGED_BYTES // row_bytes - window, window - stride, 1) // stride
    turns = ceil_div(TURNS, blocks(workload, config) * workload.batch)
    steps = ceil_div(workload.output_size[0], config.rows)
    return tiles_of_open_rows(problem, config.rows, max(1, min(rows // config.rows, steps // turns)))


def schedule_tiles(sch: Schedule, workload: ConvWorkload, config: TileConfig, name: str, staged: str) -> None:
    """Schedule a workload's computation, which sums in the stage `name` elements that it reads from `staged`.

    The weights of a step of the innermost loop are contiguous, and so are those of the steps behind it. An output in
    blocks of channels is stored as it is summed, one in NCHW is transposed first.
    """
    # Step 1. A task is a band of rows of one image, for the channels of one tile: consecutive ones share their weight,
    # or where the output's channels are last the rows that they read
    block, channels, lanes = config.block, config.channels, config.vector
    stage, packed, accumulate, output = (sch.get_sblock(each) for each in (staged, "packed", name, "output"))
    if workload.groups > 1:
        sch.reverse_compute_inline(output)
        output = sch.get_sblock("groups")
    in_blocks = has_channels_last(workload.out_layout)
    tiles = [accumulate] if in_blocks else [sch.cache_read(output, 0, "global"), accumulate]
    if workload.out_layout == "NHWC":
        n, y, x, k = sch.get_loops(output)
        kb, *ki = sch.split(k, [None, config.vectors, lanes])
    else:
        n, *group, k, y, x = sch.get_loops(output)[: 4 + (workload.groups > 1)]
        kb, *ki = sch.split(k, [None, config.vectors if in_blocks else block])
        kb = sch.fuse(*group, kb)
    yb, yo, yi = sch.split(y, [None, config.tiles, config.rows])
    xo, xi = sch.split(x, [None, config.columns])
    in_bands = workload.out_layout == "NHWC" and isinstance(workload.height, int)
    outer = [n, yb, kb] if in_bands else [kb, n, yb]
    sch.reorder(*outer, yo, xo, yi, *((xi, *ki) if in_blocks else (*ki, xi)))
    task = sch.fuse(*outer)

    # Step 2. Pack the weight, in the order of the reduction
    columns_first = name == "im2win"
    sch.transform_layout(
        packed,
        ("write", 0),
        lambda b, c, r, s, k: (b, c // channels, *((s, r) if columns_first else (r, s)), c % channels, k),
    )
    b, *taps, ki = sch.get_loops(packed)
    ki, vector = sch.split(ki, [None, lanes])
    sch.reorder(b, ki, *taps, vector)
    sch.vectorize(vector)
    loops = [task, sch.fuse(b, ki)]

    # Step 3. The input: read directly, or copied
    for tile in tiles:
        sch.compute_at(tile, xo, preserve_unit_loops=True)
    if config.staged == 0:
        sch.compute_inline(stage)
    elif config.staged == 1:
        sch.compute_at(stage, task, preserve_unit_loops=True)
    else:
        loops.append(sch.fuse(*sch.get_loops(stage)[:2]))
    if config.staged and channel_block(workload.layout) == 1 and not columns_first:
        line = LINE_BYTES // staged_bytes(workload)
        sch.storage_align(stage, 0, axis=1, factor=2 * line, offset=line)  # channels begin in different sets of a cache
    if config.staged and channel_block(workload.layout) > 1:
        *_, column, channel = sch.get_loops(stage)
        sch.annotate(column, "pragma_loop_partition_hint", True)  # only the ends of a row are tested
        sch.vectorize(channel)
    if config.parallel:
        for loop in loops:
            sch.parallel(loop)

    # Step 4. Sum a tile in registers, input channels inside the taps
    sch.transform_layout(accumulate, ("write", 0), lambda n, k, h, w: (n, k // block, h, w, k % block))
    ki, yi, xi, c, *taps = sch.get_loops(accumulate)[-6:]
    co, ci = sch.split(c, [None, channels])
    ki, vector = sch.split(ki, [None, lanes])
    sch.reorder(co, *taps, ci, yi, xi, ki, vector)
    for loop in (yi, xi, ki):
        sch.unroll(loop)
    sch.vectorize(vector)
    sch.decompose_reduction(accumulate, co)

    # Step 5. Store the tile; in rows of the output, as the epilogue is to see them, it is transposed
    if in_blocks:
        yi, xi, ki, vector = sch.get_loops(output)[-4:]
        for loop in (yi, xi, ki):
            sch.unroll(loop)
        sch.vectorize(vector)
    else:
        for loop in transpose(sch, tiles[0], config.columns, lanes):
            sch.unroll(loop)
        yi, ki, xi = sch.get_loops(output)[-3:]
        sch.unroll(yi)
        sch.vectorize(xi)
    if isinstance(workload.width, int):
        sch.annotate(xo, "pragma_loop_partition_hint", True)  # only the last tile of a row tests where the row ends


def transpose(sch: Schedule, tile: SBlockRV, columns: int, lanes: int, dtype: str = "float32") -> list[LoopRV]:
    """Schedule the copy of a tile of sums of a type into rows of its channels, `columns` columns of a vector at once.

    Return the loops over them.
    """
    sch.transform_layout(tile, ("write", 0), lambda n, k, h, w: (n, h, k, w))
    ki, yi, xi = sch.get_loops(tile)[-3:]
    ki, vector = sch.split(ki, [None, lanes])
    sch.reorder(yi, ki, vector, xi)
    if has_transposition(columns, lanes):
        sch.tensorize(vector, transposition(columns, lanes, dtype))
    return [yi, ki]


def register_tiles(workload: ConvWorkload, target: tvm.target.Target) -> Iterator[TileConfig]:
    """Yield the tiles that registers hold beside a weight for each vector and an input, which is not copied."""
    channels = innermost_channels(workload)
    height, width = workload.output_size
    lanes, registers = lanes_of(workload, target), cpu_of(target).registers
    each = ceil_div(lanes, cpu_of(target).lanes)  # registers of a vector
    parallel = workload.flops >= PARALLEL_FLOPS
    for vectors in range(1, min(MAX_VECTORS, ceil_div(workload.multiplier, lanes)) + 1):
        sums = min(registers - 1 - each * vectors, registers - SPARE[registers])
        limit = max(vectors == 1, sums // (each * vectors))
        for columns in range(1, min(width, limit) + 1):
            for rows in range(1, min(height, MAX_ROWS, limit // columns if columns == width else 1) + 1):
                yield TileConfig(vectors, lanes, rows, columns, channels, tiles=1, staged=0, parallel=parallel)


def lanes_of(workload: ConvWorkload, target: tvm.target.Target) -> int:
    """Return the output channels of a vector: the native ones, or those of a block in which they are stored."""
    block = channel_block(workload.out_layout)
    return block if block > 1 else cpu_of(target).lanes


def shape(config: TileConfig) -> tuple[int, ...]:
    """Return the numbers that make up a register tile."""
    return config.vectors, config.vector, config.rows, config.columns


def surplus(workload: ConvWorkload, config: TileConfig) -> tuple[float, float]:
    """Return the rows and the columns that whole tiles compute, as multiples of those there are."""
    height, width = workload.output_size
    return wasted(height, config.rows * config.tiles), wasted(width, config.columns)


def features(problem: Problem, config: TileConfig, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = problem.workload
    height, width = workload.output_size
    taps, channels = prod(workload.kernel), workload.w_shape[1]
    waste_y, waste_x = surplus(workload, config)
    rows, _ = workload.read_by((config.rows * config.tiles, width))
    return {
        "tile": config.vectors * config.outputs,
        "block_read": channel_block(workload.layout),
        "block_written": channel_block(workload.out_layout),
        "loads": (config.vectors + config.outputs) / (config.vectors * config.outputs),
        "waste_y": waste_y,
        "waste_x": waste_x,
        "waste_channels": wasted(workload.multiplier, config.block),
        "weight_bytes": staged_bytes(workload) * config.block * channels * taps,
        "chunk_bytes": staged_bytes(workload) * config.block * config.channels * taps,
        "band_bytes": staged_bytes(workload) * channels * rows * workload.padded_input[1],
        "halo": rows / (config.rows * config.tiles * workload.stride[0]),
        "tasks": workload.batch * blocks(workload, config) * ceil_div(height, config.rows * config.tiles),
        "reduction": channels * taps,
        "taps": taps,
        "plane": height * width,
        "out_channels": workload.out_channels,
    }
