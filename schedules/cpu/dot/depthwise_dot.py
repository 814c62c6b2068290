"""Depthwise convolution of integers on a CPU by instructions that add up four products, of neighbouring columns.

A task stages one padded band of as many planes as a vector has lanes, side by side, then computes it by register tiles.
The bytes of neighbouring columns are shuffled so that each lane has those of its channel; where a kernel's row is
shorter than the instruction's terms, the same ones serve neighbouring outputs, with weights that are moved by a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.depthwise.dot import neighbours, row_instructions
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import DotInstruction, cpu_of, dot_instruction

from ...space import ceil_div, evenly, named, tile_sizes, wasted
from ...template import Layouts
from ..depthwise import STAGED_BYTES
from ..machine import PARALLEL_FLOPS, STACK_BYTES
from ..model import Counts, by_cache, operands, packed_weight, pieces, spilled, threads_of
from ..template import CpuTemplate, Tests, threads_for_work
from .intrinsics import columns_intrinsic
from .tiles import instruction_of

MAX_UNROLLED = 512
"""The most instructions of a tile, which follow each other without a loop: LLVM takes seconds for more."""


@dataclass(frozen=True)
class Config:
    """The knobs. Sizes count outputs."""

    tiles: int
    """The number of register tiles of a task, one below the other."""
    rows: int
    """The number of rows of a register tile."""
    columns: int
    """The number of columns of a register tile."""
    parallel: bool
    """True to spread the tasks over the threads of the machine."""


def sum_bytes(instruction: DotInstruction, config: Config) -> int:
    """Return the bytes of a tile's sums."""
    return 4 * instruction.lanes * config.rows * config.columns


def unrolled(workload: ConvWorkload, instruction: DotInstruction, config: Config) -> int:
    """Return the instructions of a tile."""
    return config.rows * config.columns * workload.kernel[0] * row_instructions(workload, instruction.terms)


class DepthwiseDot(CpuTemplate[Config]):
    """Depthwise convolution of integers on a CPU, by dot products of neighbouring columns."""

    LAYOUTS = Layouts(x=("NHWC", "NCHWc"), output=("NHWC", "NCHWc"), dtypes=QUANTIZED)
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, parallel=False)
    examples = (
        Problem(ConvWorkload.depthwise((2, 32, 13, 11), (32, 1, 3, 3), dtype="int8").in_nhwc()),
        Problem(
            ConvWorkload.conv2d(
                (1, 16, 15, 14), (16, 1, 5, 5), groups=16, dtype="uint8", stride=2, x_zero_point=7
            ).in_nhwc()
        ),
        Problem(
            ConvWorkload.depthwise((3, 16, 4, 5), (16, 1, 3, 2), dtype="uint8", padding=3).in_nhwc(),
            open_sizes=OPEN_SIZES,
        ),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take depthwise convolutions with one output for each channel, in blocks of a vector's lanes, or in NHWC."""
        workload = problem.workload
        if not problem.is_depthwise:
            return "is for depthwise convolutions"
        instruction = dot_instruction(target, workload.dtype)
        if instruction is None or instruction.terms < 4:
            return f"has no instruction for four products of {workload.dtype}"
        if workload.multiplier > 1:
            return f"takes one output for each channel, not {workload.multiplier}"
        if workload.in_channels % instruction.lanes:
            return f"takes channels in multiples of {instruction.lanes}, not {workload.in_channels}"
        if blocks := {channel_block(each) for each in (workload.layout, workload.out_layout)} - {1, instruction.lanes}:
            return f"takes blocks of {instruction.lanes} channels, not {blocks.pop()}"
        if workload.dilation[1] > 1:
            return f"takes windows of neighbouring columns, not {workload.dilation[1]} apart"
        side_by_side = neighbours(workload, instruction.terms)
        if unrolled(workload, instruction, replace(self.LEAST, columns=side_by_side)) > MAX_UNROLLED:
            return f"takes kernels that it can unroll, not of {workload.kernel[0]}x{workload.kernel[1]}"
        return None

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        height, width = problem.workload.output_size
        side_by_side = neighbours(problem.workload, instruction_of(problem, target).terms)
        return {
            "tiles": tile_sizes(height),
            "rows": tuple(rows for rows in range(1, 17) if rows <= height),
            "columns": tuple(side_by_side * each for each in range(1, ceil_div(min(width, 16), side_by_side) + 1)),
            "parallel": (True, False),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload, instruction = problem.workload, instruction_of(problem, target)
        height, width = workload.output_size
        side_by_side = neighbours(workload, instruction.terms)

        def whole_neighbours(config: Config) -> bool:
            return config.columns % side_by_side == 0

        def waste(config: Config) -> bool:
            columns = wasted(width, config.columns) <= 1.5 or config.columns == side_by_side
            return wasted(height, config.rows * config.tiles) <= 1.5 and columns

        def few_sums(config: Config) -> bool:
            return sum_bytes(instruction, config) <= STACK_BYTES

        def straight_line(config: Config) -> bool:
            return unrolled(workload, instruction, config) <= MAX_UNROLLED

        return named(whole_neighbours, waste, few_sums, straight_line)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        least = self.estimate(problem, self.default_config(problem, target), target)

        def promising_tile(config: Config) -> bool:
            return self.estimate(problem, config, target) <= 1.25 * least

        return named(promising_tile, threads_for_work(problem.workload))

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles, in tasks of those that may be staged at once, and of one."""
        workload, instruction = problem.workload, instruction_of(problem, target)
        height, width = workload.output_size
        side_by_side = neighbours(workload, instruction.terms)
        staged_rows = STAGED_BYTES // (workload.padded_input[1] * instruction.lanes) - workload.window[0]
        for rows in range(1, min(height, 16) + 1):
            limit = max(1, staged_rows // (rows * workload.stride[0]))
            for columns in range(1, ceil_div(min(width, 16), side_by_side) + 1):
                for tiles in dict.fromkeys((evenly(ceil_div(height, rows), limit), 1)):
                    yield Config(tiles, rows, columns * side_by_side, workload.flops >= PARALLEL_FLOPS)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, instruction, cpu = problem.workload, instruction_of(problem, target), cpu_of(target)
        (height, width), rows = workload.output_size, config.rows * config.tiles
        steps, side_by_side = row_instructions(workload, instruction.terms), neighbours(workload, instruction.terms)
        tasks = workload.batch * (workload.in_channels // instruction.lanes) * ceil_div(height, rows)
        tiles, sums = tasks * config.tiles * ceil_div(width, config.columns), config.rows * config.columns
        wide = pieces(instruction.lanes, cpu)
        permuted = workload.read_by((config.rows, 1))[0] * steps * (config.columns // side_by_side)
        return Counts(
            tasks=tasks if config.parallel else 1,
            threads=threads_of(target, config.parallel),
            loops=(1 + (not problem.constant_weight)) * config.parallel,
            multiplied=tiles * unrolled(workload, instruction, config) * wide,
            loaded=tiles * workload.kernel[0] * steps * side_by_side,
            chained=tiles * workload.kernel[0] * steps,
            spilled=spilled(tiles * workload.kernel[0] * steps, sums + 2, cpu),
            issued=tiles * permuted * wide,
            stored=tiles * sums * wide,
            copied=tasks * workload.read_by((rows, 1))[0] * workload.padded_input[1],
            packed=packed_weight(problem),
            **by_cache(cpu, *operands(problem)),
        )

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload, instruction = problem.workload, instruction_of(problem, target)
        height, width = workload.output_size
        bands = ceil_div(height, config.rows * config.tiles)
        band_rows = workload.read_by((config.rows * config.tiles, 1))[0]
        return {
            "tile": config.rows * config.columns,
            "waste_y": wasted(height, config.rows * config.tiles),
            "waste_x": wasted(width, config.columns),
            "band_bytes": band_rows * workload.padded_input[1] * instruction.lanes,
            "halo": band_rows / (config.rows * config.tiles * workload.stride[0]),
            "cycles": self.estimate(problem, config, target),
            "tasks": workload.batch * workload.in_channels // instruction.lanes * bands,
            "code": unrolled(workload, instruction, config),
            "taps": prod(workload.kernel),
            "plane": height * width,
            "planes": workload.batch * workload.out_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "micro-kernel": replace(config, rows=1, tiles=config.rows * config.tiles),
            "threads": replace(config, parallel=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, rounded up to whole tiles
        workload, instruction = compute.with_open_sizes(problem), instruction_of(problem, target)
        tile = (config.rows * config.tiles, config.columns)
        sch = Schedule(te.create_prim_func(compute.depthwise_dot(workload, instruction, tile)))
        pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "depthwise", "output"))
        sch.compute_inline(sch.get_sblock("sums"))

        # Step 1. A task is a band of rows of as many planes as a vector has lanes
        if workload.out_layout == "NHWC":
            n, y, x, k = sch.get_loops(output)
            kb, lane = sch.split(k, [None, instruction.lanes])
        else:
            n, kb, y, x, lane = sch.get_loops(output)
        band, yo, yi = sch.split(y, [None, config.tiles, config.rows])
        xo, xi = sch.split(x, [None, config.columns])
        sch.reorder(n, kb, band, yo, xo, yi, xi, lane)
        task = sch.fuse(n, kb, band)
        if config.parallel:
            sch.parallel(task)

        # Step 2. Stage the band, and sum a tile in registers
        sch.compute_at(accumulate, xo, preserve_unit_loops=True)
        sch.compute_at(pad, task, preserve_unit_loops=True)
        *_, column, channel = sch.get_loops(pad)
        sch.annotate(column, "pragma_loop_partition_hint", True)  # only the ends of a row are tested
        sch.vectorize(channel)
        yi_, window, neighbour, vector, r, g, term = sch.get_loops(accumulate)[-7:]
        sch.reorder(r, g, yi_, window, neighbour, vector, term)
        for loop in (r, g, yi_, window, neighbour):
            sch.unroll(loop)
        init = sch.decompose_reduction(accumulate, r)
        sch.vectorize(sch.get_loops(init)[-1])
        sch.tensorize(vector, columns_intrinsic(instruction))

        # Step 3. Store
        for loop in (yi, xi):
            sch.unroll(loop)
        sch.vectorize(lane)
        sch.annotate(xo, "pragma_loop_partition_hint", True)  # only the last tile of a row tests where the row ends
        return sch

    def least(self, problem: Problem, target: tvm.target.Target) -> Config:
        """Return the configuration of one tile, as wide as the columns that the dot product takes side by side."""
        side_by_side = neighbours(problem.workload, instruction_of(problem, target).terms)
        return replace(self.LEAST, columns=side_by_side)


template = DepthwiseDot()
