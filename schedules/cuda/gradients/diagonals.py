"""The gradient of a depthwise convolution by its weight on the tensor cores of NVIDIA GPUs.

A block has all taps of a channel, and a share of the images; each of its warps has some rows of taps, and each of
these its sums in registers, along the diagonals of a product of matrices. Rows of x and of dy go through shared memory,
to which the next images are copied while some are multiplied. The sums of a diagonal are added up once, at the end.

Zeros around planes are multiplied, too: an infinity or a NaN in x or in dy may make all taps of its channel NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import COPY, MIN_BLOCKS, PRODUCT, RING
from tvmconv.compute.depthwise.bands import EIGHT
from tvmconv.compute.gradients.weight_diagonals import DiagonalTiles, diagonals, products
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.device_code import function, included
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import ceil_div, named, wasted
from ...template import Layouts
from ..depthwise_bands import obstacle_on_tensor_cores
from ..model import Counts
from ..template import GpuTemplate, Tests
from ..tensor.intrinsics import TYPES
from .diagonals_tiles import (
    AHEAD,
    MAX_REGISTERS,
    MAX_WARPS,
    PAIRS,
    SHARES,
    Config,
    candidates,
    chunks,
    counts,
    heights,
    line_bytes,
    of_three_products,
    registers_of,
    resident_blocks,
    shared_bytes,
)
from .weight import add_up_parts

IN_MEMORY = 4
"""The number of last dimensions of "lines" and "given" that are not indexed for a warp: it finds its elements
itself."""


class WeightGradientDiagonals(GpuTemplate[Config]):
    """The gradient of a depthwise convolution by its weight on tensor cores."""

    DIRECTIONS = ("weight_gradient",)
    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(groups=1, shares=1, pairs=1, rows=EIGHT, ahead=1, parts=1)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload, direction="weight_gradient")
        for workload in (
            ConvWorkload.depthwise((7, 3, 14, 14), (3, 1, 7, 7), dtype="float16"),
            ConvWorkload.depthwise((9, 2, 7, 7), (2, 1, 13, 13)),
        )
    )

    MAX_UNROLLED = 512
    """The most products of a warp which follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take windows whose columns lie side by side, and rows that fit a block."""
        if (reason := obstacle_on_tensor_cores(problem, target)) is not None:
            return reason
        workload = problem.workload
        if workload.kernel[1] == 1:  # TVM cannot tell what a loop over a single column of taps reads
            return "takes kernels of several columns"
        if not products(workload):
            return "takes kernels that meet more than padding"
        if next(self.legal(self.candidates(problem, target), problem, target), None) is None:
            return f"takes rows that fit a block, not of {workload.width} columns"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(problem.workload, config.tiles)

    def max_registers(self, problem: Problem, config: Config) -> int:
        return min(super().max_registers(problem, config), MAX_REGISTERS)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config.tiles)

    def blocks(self, problem: Problem, config: Config) -> int:
        return problem.workload.in_channels * config.parts

    def instructions(self, problem: Problem, config: Config) -> int:
        return config.tiles.block_r(problem.workload) * len(products(problem.workload))

    def resident_blocks(self, problem: Problem, config: Config, gpu: Gpu) -> int:
        return resident_blocks(problem.workload, config.tiles, gpu)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def whole_eights(config: Config) -> bool:
            return config.rows % EIGHT == 0

        def taps_for_all(config: Config) -> bool:
            """Return whether each group has rows of taps."""
            kernel = workload.kernel[0]
            return ceil_div(kernel, ceil_div(kernel, config.groups)) == config.groups

        return named(whole_eights, taps_for_all)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield configurations whose numbers of parts give each multiprocessor nearly the same number of blocks."""
        tests = self.constraints(problem, target).values()

        def fits(config: Config) -> bool:
            return all(holds(config) for holds in tests)

        return candidates(problem.workload, gpu_of(target), fits)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload = problem.workload
        limit = chunks(workload, replace(self.LEAST, groups=default.groups).tiles)
        parts = {*(1 << number for number in range(10)), *(times * default.parts for times in (1, 2, 3))}
        return {
            "groups": tuple(range(1, min(MAX_WARPS, workload.kernel[0]) + 1)),
            "shares": SHARES,
            "pairs": PAIRS,
            "rows": tuple(heights(workload)),
            "ahead": AHEAD,
            "parts": tuple(sorted(count for count in parts if count <= limit)),
        }

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def few_warps(config: Config) -> bool:
            return config.shares * config.groups <= MAX_WARPS

        def full_chunks(config: Config) -> bool:
            return config.pairs * config.shares <= workload.batch

        def chunks_for_all(config: Config) -> bool:
            return config.parts <= chunks(workload, config.tiles)

        return named(few_warps, full_chunks, chunks_for_all)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        return counts(problem, config, target)

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = problem.workload
        tiles = config.tiles
        return {
            "chunks": chunks(workload, tiles),
            "products": self.instructions(problem, config),
            "sums": 4 * tiles.block_r(workload) * len(diagonals(workload)),
            "registers": registers_of(workload, tiles),
            "shared_bytes": shared_bytes(workload, tiles),
            "waste_rows": wasted(workload.output_size[0], config.rows),
            "waste_taps": wasted(workload.kernel[0], tiles.block_r(workload)),
            "taps": prod(workload.kernel),
            "plane": prod(workload.output_size),
            "channels": workload.in_channels,
            "batch": workload.batch,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "copies ahead": replace(config, ahead=1),
            "several shares": replace(config, shares=1),
            "several parts": replace(config, parts=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, in parts of a block
        workload, tiles, threads = compute.with_open_sizes(problem), config.tiles, config.threads
        # TVM cannot tell that a block has all that it reads of "squares".
        sch = Schedule(te.create_prim_func(compute.weight_gradient_on_diagonals(workload, tiles)), enable_check=False)
        names = ("lines", "given", "product", "squares", "sums", "warps", "parts", "output")
        lines, given, product, squares, sums, warps, parts, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(sums)

        # Step 1. A block has the taps of a channel, for a part of the images. Stages are moved into loops before these
        # are split: then their indices have no conditions of the split.
        c, q, r, s, *part = sch.get_loops(output) if tiles.parts == 1 else sch.get_loops(parts)[:-1]
        sch.reorder(c, q, *part, r, s)
        block = sch.fuse(c, q, *part)
        sch.bind(block, "blockIdx.x")
        if tiles.parts == 1:
            sch.compute_at(parts, s)
            sch.set_scope(parts, 0, "local")
        staged = [sch.cache_write(warps, 0, "local")] if tiles.shares > 1 else []
        for stage in (*staged, warps, squares):
            sch.compute_at(stage, block, preserve_unit_loops=True)
        for stage in (*staged, squares):
            sch.set_scope(stage, 0, "shared.dyn")

        # Step 2. A thread adds up the diagonal of a tap, or that of a share of the images, which meet in shared memory
        sch.set_scope(warps, 0, "local")
        for loops in ([r, s], *(sch.get_loops(stage)[1:] for stage in staged)):
            _, tap = sch.split(sch.fuse(*loops), [None, threads])
            sch.bind(tap, "threadIdx.x")
        sch.compute_at(warps, tap)

        # Step 3. Sums are in the registers of the threads that the tensor cores expect them in
        share, group, r, diagonal, half, i, pair, odd = sch.get_loops(squares)[-8:]
        sch.reorder(share, group, i, pair, r, diagonal, half, odd)
        thread = sch.fuse(share, group, i, pair)
        sch.bind(thread, "threadIdx.x")
        sch.annotate(thread, MIN_BLOCKS, self.resident_blocks(problem, config, gpu_of(target)))  # or a compiler spills
        for loop in (r, diagonal, half):
            sch.unroll(loop)
        sch.vectorize(odd)
        sch.compute_at(product, thread, preserve_unit_loops=True)
        sch.set_scope(product, 0, "local")
        *spatial, turn, image, y, eight = sch.get_loops(product)[-14:]
        sch.reorder(turn, *spatial, image, y, eight)

        # Step 4. Copy rows of images, then multiply them
        for stage in (lines, given):
            sch.set_scope(stage, 0, "shared.dyn")
            sch.compute_at(stage, turn, preserve_unit_loops=True)
            sch.storage_align(stage, 0, 4, 2 * EIGHT, EIGHT)  # eight rows are in different banks
            _copy(sch, stage, threads)
        init = sch.decompose_reduction(product, turn)
        for loop in sch.get_loops(init)[-10:]:
            sch.unroll(loop)
        sch.annotate(sch.blockize(spatial[0]), PRODUCT, [*product_function(workload, tiles), IN_MEMORY])
        sch.annotate(turn, RING, [tiles.ahead, 0, 0])

        # Step 5. In a second kernel threads add up the parts of blocks
        if tiles.parts > 1:
            add_up_parts(sch, problem, tiles.parts)
        return sch


def _copy(sch: Schedule, stage: SBlockRV, threads: int) -> None:
    """Distribute the vectors of an image over threads; a thread copies the vectors at one offset in all images."""
    image, line, vector, lane = sch.get_loops(stage)[-4:]
    step, thread = sch.split(sch.fuse(line, vector), [None, threads])
    sch.reorder(thread, step, image, lane)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(image)
    through_registers = sch.get_producers(stage)
    for near in through_registers:
        sch.compute_at(near, step, preserve_unit_loops=True)
        sch.set_scope(near, 0, "local")
        for loop in sch.get_loops(near)[-7:]:
            sch.unroll(loop)
    if not through_registers:
        sch.annotate(sch.blockize(lane), COPY, False)


def product_function(workload: ConvWorkload, tiles: DiagonalTiles) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    lines, reached, is_whole = tiles.lines(workload), diagonals(workload), tiles.bands(workload) == 1
    x_line, dy_line = (line_bytes(width, workload.itemsize) for width in (workload.width, workload.output_size[1]))
    tile = tiles.block_r(workload), tiles.groups, tiles.pairs, tiles.rows
    sizes = x_line, lines * x_line, dy_line, tiles.rows * dy_line
    rows = workload.kernel[0], workload.padding[0] if is_whole else 0, lines
    columns = workload.width, workload.output_size[1], workload.kernel[1], workload.padding[1]
    numbers = *tile, *sizes, *rows, -reached[0], len(reached), *columns, is_whole
    kind = "diagonals_product_in_float32" if of_three_products(workload) else "diagonals_product"
    return function(kind, TYPES[workload.dtype], *numbers), included("schedules/cuda/gradients/diagonals.cuh")


template = WeightGradientDiagonals()
