"""Depthwise convolution on a CPU: a task stages one padded band of an input plane, then computes it by register tiles.

Vectors run over neighbouring columns, or over channels where rows are short. The staged band is laid out by the phase
of the stride, so that every tap reads neighbouring elements.

On Zen 5 in float32 at batch 1 it is, tuned, 5.5 times as fast as PyTorch's NCHW convolutions with two threads in the
geometric mean over the depthwise suites, and 2.2 times as its channels-last ones, by the fastest rounds
(benchmarks/depthwise-cpu-2-threads.json).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import TO_THE_END
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import DTYPES, NARROW, QUANTIZED
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import TURNS, cpu_of

from ..open_sizes import tiles_of_open_rows
from ..space import ceil_div, divisors, evenly, named, tile_sizes, wasted
from ..template import Layouts
from .machine import PARALLEL_FLOPS, STACK_BYTES, staged_bytes
from .model import Counts, Read, allocations, by_cache, converted, operands, pieces, spilled, threads_of
from .template import CpuTemplate, Tests, threads_for_work

STAGED_BYTES = 16 * 1024
"""The bytes that the default configuration aims to stage at once, so that reading and computing take turns often."""

READ_AHEAD = 256
"""The multiply-adds of a tile in blocks beyond which LLVM loads far ahead, and stores what it has no registers for."""

UNROLLED = 1024
"""The most multiply-adds of a tile in blocks that follow each other without a loop: LLVM takes a second for them."""


@dataclass(frozen=True)
class Config:
    """The knobs. Sizes count outputs."""

    tiles: int
    """The number of register tiles of a task, one below the other."""
    rows: int
    """The number of rows of a register tile."""
    columns: int
    """The number of columns of a register tile, in vectors where they run over columns."""
    vector: int
    """The number of lanes of a vector."""
    over_channels: bool
    """True if vectors run over channels, else they run over columns."""
    unroll: int
    """The tap loops to unroll, from the innermost: 0 none, 1 a column of the kernel, 2 all of it."""
    parallel: bool
    """True to spread the tasks over the threads of the machine."""

    @property
    def block_y(self) -> int:
        """The number of rows of a task."""
        return self.tiles * self.rows

    @property
    def channels(self) -> int:
        """The number of channels of a task."""
        return self.vector if self.over_channels else 1

    @property
    def block_x(self) -> int:
        """The number of columns of a register tile."""
        return self.columns if self.over_channels else self.columns * self.vector


def _stays_whole(rows: int, columns: int) -> bool:
    """Return whether the sums of a tile in blocks stay whole vectors over the turns of a loop.

    LLVM joins the sums that a loop keeps into one long vector, and splits it into pieces of 4 numbers unless their
    number is a power of two: 240 channels of 28x28 with kernels of 5x5 took four times as long on Zen 4.
    """
    return (rows * columns).bit_count() == 1


def _tiles_in_blocks(problem: Problem, block: int, target: tvm.target.Target) -> Iterator[Config]:
    """Yield the configurations that a default is chosen from where channels are in blocks."""
    workload = problem.workload
    (height, width), taps = workload.output_size, prod(workload.kernel)
    limit = (STACK_BYTES - 1) // (workload.sum_bytes * block)  # sums of more bytes are in memory
    sums = max(1, min(limit, 3 * cpu_of(target).registers // 4 // ceil_div(block, cpu_of(target).lanes)))
    for rows, columns in product(range(1, min(height, 8) + 1), range(1, min(width, 8) + 1)):
        whole, tile = _stays_whole(rows, columns), rows * columns
        if tile <= sums and (whole or taps * tile <= UNROLLED):
            yield Config(
                tiles=_tiles(problem, rows, block),
                rows=rows,
                columns=columns,
                vector=block,
                over_channels=True,
                unroll=2 if not whole else 1 if taps * tile <= 256 else 0,
                parallel=workload.flops >= PARALLEL_FLOPS,
            )


def _tiles_in_planes(problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
    """Yield the configurations that a default is chosen from where the columns of a plane lie side by side.

    Of a plane of few columns vectors run over channels, if there are whole vectors of them.
    """
    workload, native = problem.workload, cpu_of(target).lanes
    height, width = workload.output_size
    over_channels = width < 4 and workload.multiplier == 1 and workload.out_channels % native == 0
    lanes = native if over_channels else lanes_for(width, native)
    for rows in range(1, min(height, 14) + 1):
        yield Config(
            tiles=_tiles(problem, rows, lanes if over_channels else 1),
            rows=rows,
            columns=width if over_channels else 1,
            vector=lanes,
            over_channels=over_channels,
            unroll=1 if workload.kernel[0] * rows <= 256 else 0,
            parallel=workload.flops >= PARALLEL_FLOPS,
        )


def _tiles(problem: Problem, rows: int, channels: int) -> int:
    """Return the number of tiles, of `rows` rows each, of a task that stages `channels` channels in `STAGED_BYTES`."""
    workload = problem.workload
    height, width = workload.output_size
    row_bytes = staged_bytes(workload) * workload.read_by((rows, width))[1] * channels
    tiles = max(1, (STAGED_BYTES // row_bytes - workload.window[0]) // (rows * workload.stride[0]))
    steps = ceil_div(height, rows)
    return tiles_of_open_rows(problem, rows, evenly(steps, tiles))


def surplus(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the work of a plane's whole tasks and tiles, as multiples of its rows and of its vectors in a row."""
    height, width = workload.output_size
    lanes = 1 if config.over_channels else config.vector
    return wasted(height, config.block_y), wasted(ceil_div(width, lanes), config.columns)


def unrolled(workload: ConvWorkload, config: Config) -> int:
    """Return the vector multiply-adds of a thread that follow each other without a loop."""
    return config.rows * config.columns * (1, workload.kernel[0], prod(workload.kernel))[config.unroll]


def lanes_for(width: int, native: int) -> int:
    """Return the lanes of vectors over `width` columns, of which few are idle.

    The model underestimates vectors of fewer lanes than a register has: LLVM joins some of them, at times badly.
    """

    def cost(lanes: int) -> float:
        vectors = ceil_div(width, lanes)
        return vectors + 0.1 * (vectors * lanes - width)

    return min((16, 8, 4), key=lambda lanes: (lanes > native, cost(lanes)))


class Depthwise(CpuTemplate[Config]):
    """Depthwise convolution on a CPU, in bands of rows that are staged."""

    VERSION = 2
    LAYOUTS = Layouts(x=("NCHW", "NCHWc"), output=("NCHW", "NCHWc"), dtypes=DTYPES)
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(1, 1, 1, vector=4, over_channels=False, unroll=0, parallel=False)
    examples = (
        Problem(ConvWorkload.depthwise((2, 6, 11, 13), (6, 1, 3, 3), shift=True, residual=True, activation="relu")),
        Problem(ConvWorkload.depthwise((1, 5, 14, 15), (5, 3, 3, 3), stride=2, padding=(3, 0, 1, 2))),
        Problem(ConvWorkload.depthwise((2, 12, 14, 14), (12, 1, 7, 7), dtype="float16", scale=True)),
        Problem(ConvWorkload.conv2d((1, 16, 13, 11), (16, 1, 3, 3), groups=16, dtype="uint8", x_zero_point=7)),
        Problem(
            ConvWorkload.depthwise((1, 4, 19, 22), (4, 1, 3, 3), dilation=(1, 3), shift=True), open_sizes=OPEN_SIZES
        ),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take depthwise convolutions; in blocks of channels those that have one output for each channel."""
        workload = problem.workload
        if not problem.is_depthwise:
            return "is for depthwise convolutions"
        if workload.layout != workload.out_layout:
            return f"takes one layout for x and output, not {workload.layouts}"
        if not workload.is_in_nchw and workload.multiplier > 1:
            return f"takes one output for each channel in blocks of channels, not {workload.multiplier}"
        return None

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        (height, width), block = problem.workload.output_size, channel_block(problem.workload.layout)
        return {
            "tiles": tile_sizes(height),
            "rows": tuple(rows for rows in (*range(1, 9), 10, 12, 14, 16) if rows <= height),
            "columns": tuple(range(1, min(width, 8) + 1)),
            "vector": (block,) if block > 1 else tuple(lanes for lanes in (4, 8, 16) if lanes <= cpu_of(target).lanes),
            "over_channels": (False, True) if block == 1 else (True,),
            "unroll": (0, 1, 2),
            "parallel": (True, False),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload = problem.workload
        native, block = cpu_of(target).lanes, channel_block(workload.layout)

        def waste(config: Config) -> bool:
            return max(surplus(workload, config)) <= 1.5

        def whole_channels(config: Config) -> bool:
            return not config.over_channels or (workload.multiplier == 1 and workload.out_channels % config.vector == 0)

        def stored_blocks(config: Config) -> bool:
            return block == 1 or (config.over_channels and config.vector == block)

        def registers(config: Config) -> bool:
            return config.rows * config.columns * config.vector <= 24 * native

        def sums_on_the_stack(config: Config) -> bool:
            # TVM takes memory for others: in blocks LLVM takes a minute over them, and they are ten times as slow.
            return block == 1 or workload.sum_bytes * config.rows * config.columns * config.vector < STACK_BYTES

        def straight_line(config: Config) -> bool:
            return config.unroll <= 2 and unrolled(workload, config) <= 2048

        return named(waste, whole_channels, stored_blocks, registers, sums_on_the_stack, straight_line)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload = problem.workload
        width, native = workload.output_size[1], cpu_of(target).lanes

        def little_waste(config: Config) -> bool:
            return max(surplus(workload, config)) <= 1.2

        def short_vectors_for_short_rows(config: Config) -> bool:
            return config.vector == native or (not config.over_channels and wasted(width, native) > 1.1)

        def some_unrolling(config: Config) -> bool:
            return config.unroll > 0

        def quick_to_compile(config: Config) -> bool:  # LLVM takes seconds for more, and at worst a minute
            return not config.over_channels or unrolled(workload, config) <= 96

        return named(
            little_waste, short_vectors_for_short_rows, some_unrolling, quick_to_compile, threads_for_work(workload)
        )

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        block = channel_block(problem.workload.layout)
        return _tiles_in_blocks(problem, block, target) if block > 1 else _tiles_in_planes(problem, target)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, cpu = problem.workload, cpu_of(target)
        (height, width), (kernel_y, kernel_x), taps = workload.output_size, workload.kernel, prod(workload.kernel)
        wide, registers = pieces(config.vector, cpu), ceil_div(config.vector, cpu.lanes)
        tasks = workload.batch * workload.out_channels // config.channels * ceil_div(height, config.block_y)
        across = ceil_div(width, config.block_x)
        tiles, sums = tasks * config.tiles * across, config.rows * config.columns * wide
        inputs = taps * sums
        if config.unroll and workload.dilation[0] == 1:  # a vector is read once for all rows of the kernel
            inputs = workload.read_by((config.rows, 1))[0] * kernel_x * config.columns * wide
        rows, columns = workload.read_by((config.block_y, across * config.block_x))
        by_element = workload.stride[1] > 1 and not config.over_channels
        by_element |= config.over_channels and channel_block(workload.layout) == 1
        staged, nbytes = tasks * rows * columns * config.channels, staged_bytes(workload)
        used = config.rows * config.columns * registers + (kernel_y if config.unroll else 1) + 1
        reads_ahead = config.over_channels and config.unroll == 2 and unrolled(workload, config) > READ_AHEAD
        in_pieces = config.over_channels and config.unroll < 2 and not _stays_whole(config.rows, config.columns)
        return Counts(
            tasks=tasks if config.parallel else 1,
            threads=threads_of(target, config.parallel),
            loops=int(config.parallel),
            multiplied=tiles * taps * sums,
            loaded=tiles * (inputs + taps * wide * config.over_channels),
            chained=tiles * taps,
            broadcast=tiles * taps * (not config.over_channels),
            split=tiles * inputs * (not config.over_channels),
            spilled=spilled(tiles * taps, used, cpu) + tiles * taps * sums * in_pieces,
            allocated=allocations(tiles, workload.sum_bytes * config.rows * config.columns * config.vector),
            issued=tiles * sums * (1 + taps * reads_ahead) + tasks * rows + converted(workload, staged, cpu),
            stored=tiles * sums,
            copied=0.0 if by_element else max(staged * nbytes / cpu.unit_bytes, tasks * rows),
            moved=staged * by_element,
            **by_cache(
                cpu,
                *operands(problem),
                Read(tiles * inputs / wide * config.vector * nbytes, rows * columns * config.channels * nbytes),
            ),
        )

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload = problem.workload
        height, width = workload.output_size
        (sh, sw), (wh, ww), taps = workload.stride, workload.window, prod(workload.kernel)
        lanes = 1 if config.over_channels else config.vector
        vectors, bands = ceil_div(width, lanes), ceil_div(height, config.block_y)
        waste_y, waste_x = surplus(workload, config)
        tasks = workload.batch * workload.out_channels // config.channels * bands
        band_rows = wh + (config.block_y - 1) * sh
        band = staged_bytes(workload) * band_rows * (ww + (vectors * lanes - 1) * sw) * config.channels
        return {
            "tile": config.rows * config.columns,
            "block": channel_block(workload.layout),
            "block_y": config.block_y,
            "waste_y": waste_y,
            "waste_x": waste_x,
            "idle_lanes": vectors * lanes / width,
            "band_bytes": band,
            "halo": band_rows / (config.block_y * sh),
            "tasks": tasks,
            "work": 2 * taps * config.block_y * vectors * config.vector,
            "code": unrolled(workload, config),
            "taps": taps,
            "plane": height * width,
            "planes": workload.batch * workload.out_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "micro-kernel": replace(config, rows=1, columns=1, tiles=config.rows * config.tiles),
            "unrolling": replace(config, unroll=0),
            "threads": replace(config, parallel=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        workload = compute.with_open_sizes(problem)
        # Step 0. The computation, rounded up to whole tiles
        tile = (config.block_y, config.block_x)
        sch = Schedule(te.create_prim_func(compute.depthwise(workload, tile)))
        pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "depthwise", "output"))
        sw, lanes = workload.stride[1], config.vector

        # Step 1. Tile the output: a task is a band of rows of one plane, or of as many planes as a vector has lanes
        block = channel_block(workload.layout)
        n, k, y, x, *channel = sch.get_loops(output)
        kb, ki = (k, *channel) if block > 1 else sch.split(k, [None, config.channels])
        yb, yo, yi = sch.split(y, [None, config.tiles, config.rows])
        xo, xi = sch.split(x, [None, config.block_x])
        sch.reorder(n, kb, yb, yo, xo, *((yi, xi, ki) if config.over_channels else (ki, yi, xi)))
        planes, turns = workload.out_channels // config.channels, ceil_div(TURNS, problem.workload.batch)
        if not config.parallel:
            task = sch.fuse(n, kb, yb)
        elif planes < turns:
            turn, task = sch.split(sch.fuse(n, kb, yb), [None, 1])
            sch.parallel(turn)
        else:  # several planes in a turn, for which TVM then takes the memory to stage in once, not once a task
            kb, kt = sch.split(kb, [None, divisors(planes, planes // turns)[-1]])
            turn, task = sch.fuse(n, kb), sch.fuse(kt, yb)
            sch.parallel(turn)

        # Step 2. Accumulate a tile in registers; the epilogue follows
        sch.compute_at(accumulate, xo, preserve_unit_loops=True)
        if isinstance(workload.width, int):
            sch.annotate(xo, "pragma_loop_partition_hint", True)  # only the last tile of a row tests where the row ends
        elif config.block_x > 1:
            sch.annotate(xo, TO_THE_END, config.block_x)

        # Step 3. Stage the padded band, so that a vector of columns, or of channels, is contiguous for every tap
        sch.compute_at(pad, task, preserve_unit_loops=True)
        if block > 1:
            *_, column, channel = sch.get_loops(pad)
            sch.annotate(column, "pragma_loop_partition_hint", True)  # only the ends of a row are tested
            sch.vectorize(channel)
        elif config.over_channels:
            sch.transform_layout(pad, ("write", 0), lambda n, c, h, w: (n, c // lanes, h, w, c % lanes))
        if config.over_channels:
            if workload.dtype in QUANTIZED:
                taps = sch.get_sblock("packed")
            else:
                taps = sch.cache_read(accumulate, 1, "global")
                sch.compute_at(taps, task, preserve_unit_loops=True)
            sch.transform_layout(taps, ("write", 0), lambda c, m, r, s: (c // lanes, m, r, s, c % lanes))
        elif sw > 1 or workload.dtype in NARROW:
            band = sch.get_loops(pad)[-4]
            copies = sch.can_decompose_padding(pad, band)
            if copies:  # without tests, so that LLVM makes vectors of each phase
                zeros = sch.decompose_padding(pad, band)
                columns, phase = sch.split(sch.get_loops(zeros)[-1], [None, sw])
                sch.reorder(phase, columns)
            column, phase = sch.split(sch.get_loops(pad)[-1], [None, sw])
            sch.unroll(phase)
            if copies and not isinstance(workload.width, int):  # else TVM may simplify the tests of padding for minutes
                sch.annotate(column, "pragma_loop_partition_hint", True)  # only the end of a row is tested
            sch.transform_layout(pad, ("write", 0), lambda n, c, h, w: (n, c, h, w % sw, w // sw))

        # Step 4. Taps outside, the tile inside
        ki, yi, xi, r, s = sch.get_loops(accumulate)[-5:]
        xi, vector = (xi, ki) if config.over_channels else sch.split(xi, [None, lanes])
        sch.reorder(s, r, yi, xi, vector)  # so all rows of the kernel use an input vector while it is in a register
        for loop in (yi, xi, *((), (r,), (s, r))[config.unroll]):
            sch.unroll(loop)
        sch.vectorize(vector)
        sch.decompose_reduction(accumulate, s)

        # Step 5. Store
        if config.over_channels:
            *_, yi, xi, vector = sch.get_loops(output)
        else:
            *_, yi, xi = sch.get_loops(output)
            xi, vector = sch.split(xi, [None, lanes])
        for loop in (yi, xi):
            sch.unroll(loop)
        sch.vectorize(vector)
        return sch


template = Depthwise()
