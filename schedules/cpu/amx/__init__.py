"""Convolution of integers and bfloat16 on a CPU by the tiles of AMX, which multiply matrices of 16 by 16 sums.

Up to 16 pixels, with up to 64 bytes of neighbouring channels each, are multiplied with the same channels of 16 filters
by one instruction. Up to six tiles of sums stay in registers; of 2 by 2 each tile that is loaded serves two products.
The input is copied, so that the channels of a step lie side by side, unless they do so already. Where there are few, as
in an image, a row of the window in all channels is copied to where channels would be: the im2win layout along rows.

Where a CPU has no tiles, tests run its code by an emulator of the instructions
(`tests/schedules/cpu/emulated_tiles.c`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import TILE_PRODUCT, TILE_TASK, TileProduct
from tvmconv.compute.dense.dot import is_row, zero_of
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.layout import Layout, channel_block, data_layout
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import cpu_of, tile_instruction

from ...template import Layouts
from ..direct import register_tiles
from ..direct.tiles import TileConfig
from ..dot.schedule import pack_weight, split_tasks, stage_input, store_tile
from ..dot.tiles import band_of, tile_features
from ..model import packed_weight, threads_of
from ..model.rates import rates_of
from ..template import CpuTemplate, Tests
from . import tiles
from .code import END, REQUEST, tile_code
from .tiles import computed, cycles, depth, instruction_of


@dataclass(frozen=True)
class Config(TileConfig):
    """The knobs, which are those of `TileConfig`, for tiles of AMX instead of vectors.

    `vectors` are tiles of output channels side by side, and `rows` tiles of `columns` pixels, which lie below each
    other; of a plane that is one row, they and `tiles` lie side by side. A step multiplies `channels` input channels.
    """


def _sum(sch: Schedule, accumulate: SBlockRV, config: Config, terms: int) -> SBlockRV:
    """Schedule the sums of tiles as plain loops, and return the block that is all of them."""
    block = config.block
    sch.transform_layout(accumulate, ("write", 0), lambda n, k, h, w: (n, k // block, h, w, k % block))
    ki, yi, xi, c, r, s = sch.get_loops(accumulate)[-6:]
    co, ci, term = sch.split(c, [None, config.channels // terms, terms])
    sch.reorder(yi, xi, ki, co, r, s, ci, term)
    return sch.blockize(yi)


def _product(workload: ConvWorkload, config: Config, layout: Layout, name: str) -> TileProduct:
    """Return where the function of that name finds the next tile, pixel, chunk, row and column."""
    (row, column), (sh, sw), (dh, dw) = layout.spatial, workload.stride, workload.dilation
    in_row = is_row(workload)
    return TileProduct(
        name,
        *(depth(workload, config) // config.channels, *workload.kernel),
        sum_tile=(3, config.columns) if in_row else (2, 1),
        sum_pixel=(3, 1),
        tile=(column, config.columns) if in_row else (row, sh),
        pixel=(column, sw),
        chunk=_chunk(layout, config.channels),
        row=(row, dh),
        column=(column, dw),
    )


def _chunk(layout: Layout, channels: int) -> tuple[int, int]:
    """Return the axis and the step to the next chunk of `channels`: to the next block, or along a pixel."""
    return (1, 1) if layout.block == channels else (layout.order.index(1), channels)


class Amx(CpuTemplate[Config]):
    """Convolution of integers and bfloat16 on a CPU, by tiles of AMX."""

    VERSION = 2
    LAYOUTS = Layouts(
        x=("NCHW", "NHWC", "NCHWc"),
        w=("KCRS", "KRSC"),
        output=("NCHW", "NHWC", "NCHWc"),
        dtypes=(*QUANTIZED, "bfloat16"),
    )
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, 1, 1, staged=0, parallel=False)
    examples = (
        Problem(ConvWorkload.conv2d((1, 32, 7, 9), (48, 32, 1, 1), dtype="int8", out_dtype="int8", residual=True)),
        Problem(ConvWorkload.conv2d((1, 9, 17, 48), (64, 3, 3, 48), dtype="bfloat16", layout="NHWC", shift=True)),
        Problem(ConvWorkload.conv2d((1, 3, 19, 18), (24, 3, 7, 7), dtype="uint8", stride=2, x_zero_point=5)),
        Problem(
            ConvWorkload.conv2d((2, 19, 6, 5), (35, 19, 3, 3), dtype="int8", x_zero_point=9), open_sizes=OPEN_SIZES
        ),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take convolutions of one group, and outputs in blocks of channels that make up a tile."""
        workload = problem.workload
        if not problem.is_dense:
            return "is for dense convolutions"
        instruction = tile_instruction(target, workload.dtype)
        if instruction is None:
            return f"has no tiles for {workload.dtype}"
        if workload.groups > 1:
            return f"takes one group, not {workload.groups}"
        if instruction.lanes % channel_block(workload.out_layout):
            return f"writes blocks that make up {instruction.lanes} channels, not {channel_block(workload.out_layout)}"
        if workload.out_layout == "NHWC" and workload.out_channels % instruction.lanes:
            return f"writes NHWC in multiples of {instruction.lanes} channels, not {workload.out_channels}"
        return None

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        return tiles.knobs(computed(problem, target), target)

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        return tiles.constraints(computed(problem, target), target)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        return tiles.heuristics(computed(problem, target), target)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles in tasks; those with the fewest loads come first."""
        found = tiles.tasks(computed(problem, target), target)
        return (Config(**vars(tile)) for tile in sorted(found, key=lambda tile: tile.rows + tile.vectors))

    def estimate(self, problem: Problem, config: Config, target: tvm.target.Target) -> float:
        """Return the clocks that a call should take, by the model of tiles, with those of parallel loops."""
        threads, rates = threads_of(target, config.parallel), rates_of(cpu_of(target))
        loops = (2 + (config.staged == 2)) * config.parallel
        working = cycles(computed(problem, target), config, target) * problem.workload.batch / threads
        return rates.call + loops * rates.loop + rates.pack * packed_weight(problem) / threads + working

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        problem = computed(problem, target)
        workload = problem.workload
        return tile_features(workload, config, cycles(problem, config, target), channels=depth(workload, config))

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return register_tiles.ablations(config)

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, rounded up to whole tiles
        given, problem = compute.with_open_sizes(problem), computed(problem, target)
        workload, instruction = compute.with_open_sizes(problem), instruction_of(problem, target)
        has_zero = zero_of(workload, instruction.first) != 0
        layout = data_layout(f"NCHW{config.channels}c") if config.staged else None
        tile = (config.block, *band_of(workload, config))
        rows_of = given if given.in_channels < workload.in_channels else None
        stages = compute.dot(workload, instruction, tile, depth(workload, config), layout, rows_of)
        sch = Schedule(te.create_prim_func(stages))
        if rows_of is not None:
            sch.compute_inline(sch.get_sblock("filter_rows"))

        # Step 1. Tasks and tiles; the weight, packed; the input, read directly or copied
        tasks = split_tasks(sch, workload, config, has_zero)
        loops = [tasks.task, pack_weight(sch, config, instruction.terms, has_zero)]
        if config.staged:
            loops += stage_input(sch, workload, config, tasks.task)
        if workload.layout == "NCHW":  # one element after the other is gathered
            *_, column, channel = sch.get_loops(sch.get_sblock("pad"))
            sch.annotate(column, "pragma_loop_partition_hint", True)
            sch.unroll(channel)
        if config.parallel:
            for loop in loops:
                sch.parallel(loop)

        # Step 2. Sum all tiles in registers, by one function, chunks of input channels around the taps
        sums = _sum(sch, tasks.tiles[-1], config, instruction.terms)
        code = tile_code(instruction, config.rows, config.vectors, config.columns, config.channels)
        sch.annotate(tasks.task, TILE_TASK, [code.text, REQUEST, code.begin, END])
        product = _product(workload, config, layout or workload.x_layout, code.product)
        sch.annotate(sums, TILE_PRODUCT, product.to_list())

        # Step 3. Store them
        store_tile(sch, workload, config, tasks, instruction.sums)
        return sch


template = Amx()
