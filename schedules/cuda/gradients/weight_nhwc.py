"""The gradient of a depthwise convolution by its weight on CUDA, of tensors in NHWC.

Neighbouring threads have neighbouring channels, as in `depthwise_nhwc`. It is summed in two kernels: a thread has all
sums of its channels in registers, a block adds up those of its threads, and the second kernel those of blocks, each in
an order that depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod, sqrt
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import MIN_BLOCKS
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu, gpu_of

from ...space import ceil_div, divisors, named, wasted, with_default
from ...template import Layouts
from ..machine import SECTOR, SUM_BYTES
from ..model import Counts, in_runs, memory_bytes
from ..template import GpuTemplate, Tests
from . import BEGINNING, obstacle_in_nhwc
from .weight_nhwc_tiles import (
    COLUMNS,
    LANES,
    ROOM,
    ROWS,
    VECTORS,
    Config,
    Tile,
    adders,
    all_tiles,
    candidates,
    registers_of,
    resident_blocks,
    shared_bytes,
    tile_of,
)

ADDING = 3
"""The instructions of a thread for a sum, each time that half of a block's threads add theirs to the other half's."""

MAX_TAPS = 100
"""The most taps: a thread has the sums of all of them, for each of its channels, in registers."""


class WeightGradientNhwc(GpuTemplate[Config]):
    """The gradient of a depthwise convolution by its weight in NHWC."""

    DIRECTIONS = ("weight_gradient",)
    LAYOUTS = Layouts(x=("NHWC",), output=("NHWC",))
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, threads_y=1, parts=1, ahead=False)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload.in_nhwc(), direction="weight_gradient")
        for workload in (
            ConvWorkload.depthwise((2, 8, 12, 11), (8, 1, 3, 3), stride=2),
            ConvWorkload.depthwise((3, 6, 9, 12), (6, 1, 5, 3), dtype="float16"),
        )
    )

    MAX_UNROLLED = 2800
    """The most multiply-adds of a thread that follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle_in_nhwc(problem, MAX_TAPS)

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(self._tile(problem, config).numbers)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
        return int(target.attrs["max_shared_memory_per_block"])

    def blocks(self, problem: Problem, config: Config) -> int:
        return config.parts * ceil_div(problem.workload.out_channels, config.vector * config.threads_c)

    def instructions(self, problem: Problem, config: Config) -> int:
        return config.vector * config.rows * config.columns * prod(problem.workload.kernel)

    def resident_blocks(self, problem: Problem, config: Config, gpu: Gpu) -> int:
        """Return the blocks that a multiprocessor has registers for."""
        return resident_blocks(config, self._tile(problem, config).numbers)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def whole_channels(config: Config) -> bool:
            return config.vector in VECTORS and workload.out_channels % (config.vector * config.threads_c) == 0

        def tiles_in_planes(config: Config) -> bool:
            return config.rows <= workload.output_size[0] and config.columns <= workload.output_size[1]

        def undilated(config: Config) -> bool:
            rows, columns = workload.dilation
            return (config.rows == 1 or rows == 1) and (config.columns == 1 or columns == 1)

        def numbers_in_registers(config: Config) -> bool:
            one = config.vector == config.rows == config.columns == 1
            return one or self._tile(problem, config).numbers <= ROOM

        def whole_turns(config: Config) -> bool:
            return config.parts % adders(config.parts) == 0  # the threads that add up have the same control flow

        return named(whole_channels, tiles_in_planes, undilated, numbers_in_registers, whole_turns)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        return candidates(problem.workload, gpu_of(target))

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload, (height, width) = problem.workload, problem.workload.output_size
        parts = {ceil_div(default.parts * numerator, 4) for numerator in (1, 2, 3, 4, 6, 8, 16)}
        knobs = {
            "vector": VECTORS,
            "threads_c": divisors(workload.out_channels, LANES),
            "rows": tuple(range(1, min(height, ROWS) + 1)),
            "columns": tuple(range(1, min(width, COLUMNS) + 1)),
            "threads_y": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
            "parts": tuple(ceil_div(each, adders(each)) * adders(each) for each in parts),
            "ahead": (False, True),
        }
        return with_default(knobs, default)

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def full_warps(config: Config) -> bool:
            return WARP <= config.threads <= 512 and wasted(config.threads, WARP) <= 1.35

        def little_waste(config: Config) -> bool:
            return prod(map(wasted, workload.output_size, (config.rows, config.columns))) <= 1.3

        return named(full_warps, little_waste)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, tile, taps = problem.workload, self._tile(problem, config), prod(problem.workload.kernel)
        turns = ceil_div(all_tiles(workload, tile), config.parts * config.threads_y)
        reads = config.rows * config.columns + prod(config.tiles.window(workload))
        warps, run = ceil_div(config.threads, WARP), config.vector * config.threads_c * workload.itemsize
        words = max(1.0, config.vector * workload.itemsize / SUM_BYTES)
        finishing = taps * config.vector * (2 + ADDING * config.threads_y.bit_length())
        issued = turns * tile.instructions + finishing + BEGINNING
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target) * in_runs(run),
            fetched=turns * config.threads_y * reads * max(run, SECTOR),
            accessed=warps * (turns * reads * words + taps * config.vector),
            arrivals=1 + turns * (1 if config.ahead else sqrt(config.rows)),
            serial=issued,
            kernels=2,
            beside=2 * SUM_BYTES * config.parts * prod(workload.w_shape),
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload, tile = problem.workload, self._tile(problem, config)
        return {
            "numbers": tile.numbers,
            "instructions": tile.instructions,
            "run_bytes": config.vector * config.threads_c * workload.itemsize,
            "shared_bytes": shared_bytes(workload, config),
            "waste": prod(map(wasted, workload.output_size, (config.rows, config.columns))),
            "taps": prod(workload.kernel),
            "plane": prod(workload.output_size),
            "channels": workload.out_channels,
            "images": workload.batch,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "vector loads": replace(config, vector=1),
            "tile in registers": replace(config, rows=1, columns=1),
            "window ahead": replace(config, ahead=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation
        workload, vector, threads_c, tiles = problem.workload, config.vector, config.threads_c, config.tiles
        sch = Schedule(
            te.create_prim_func(compute.weight_gradient_in_channels(compute.with_open_sizes(problem), tiles))
        )
        near_x, wide_x, window = (sch.get_sblock(name) for name in ("near_x", "wide_x", "window"))
        near_dy, wide_dy, grad = (sch.get_sblock(name) for name in ("near_dy", "wide_dy", "grad"))
        sums, parts, total, output = (sch.get_sblock(name) for name in ("sums", "parts", "total", "output"))

        # Step 1. A block has a part of the tiles of some channels
        stored = sch.cache_write(parts, 0, "local")
        p, r, s, k = sch.get_loops(stored)
        bk, block_k = sch.split(k, [None, threads_c * vector])
        sch.reorder(p, bk, r, s, block_k)
        block = sch.fuse(p, bk)
        sch.bind(block, "blockIdx.x")

        # Step 2. Each thread sums its tiles in registers, turn by turn. Stages are moved into loops before these are
        # split: then their indices have no conditions of the split.
        block_k = sch.fuse(s, block_k)
        sch.compute_at(parts, block_k, preserve_unit_loops=True)
        staged = sch.cache_read(parts, 0, "shared")
        sch.compute_at(staged, r, preserve_unit_loops=True)
        sch.compute_at(sums, block, preserve_unit_loops=True)
        sch.set_scope(sums, 0, "local")
        _, thread_y, thread_x = sch.split(block_k, [None, tiles.threads, threads_c])
        _bind_threads(sch, thread_y, thread_x)
        # A compiler takes fewer registers for more blocks, and waits for memory.
        sch.annotate(thread_x, MIN_BLOCKS, self.resident_blocks(problem, config, gpu_of(target)))
        *_, thread, r_, s_, k, turn, row, column = sch.get_loops(sums)
        tk, lane = sch.split(k, [threads_c, vector])
        sch.reorder(thread, tk, turn, row, column, r_, s_, lane)
        _bind_threads(sch, thread, tk)
        loops = {
            grad: turn,
            wide_dy: turn,
            near_dy: turn,
            window: row,
            wide_x: row,
            near_x: turn if config.ahead else row,
        }
        for stage, loop in loops.items():
            sch.compute_at(stage, loop, preserve_unit_loops=True)
            _into_registers(sch, stage, is_vector=stage in (near_x, near_dy))
        for loop in (row, column, r_, s_, lane):
            sch.unroll(loop)
        for loop in sch.get_loops(sch.decompose_reduction(sums, turn))[-3:]:
            sch.unroll(loop)

        # Step 3. The block adds up the sums of its threads, a row of taps at a time, from shared memory
        sch.unroll(r)  # registers have no addresses
        *_, thread, _, s_, k = sch.get_loops(staged)
        tk, lane = sch.split(k, [threads_c, vector])
        sch.reorder(thread, tk, s_, lane)
        _bind_threads(sch, thread, tk)
        sch.unroll(s_)
        sch.vectorize(lane)
        sch.decompose_reduction(parts, sch.get_loops(parts)[-1])

        # Step 4. In the second kernel the threads of a warp's column add up the parts of a tap of a channel
        *taps, k, p = sch.get_loops(total)
        lanes = divisors(workload.out_channels, WARP)[-1]
        bk, tk = sch.split(k, [None, lanes])
        sch.bind(sch.fuse(*taps, bk), "blockIdx.x")
        sch.bind(tk, "threadIdx.x")
        _, adder = sch.split(p, [None, adders(tiles.parts)])
        sch.bind(adder, "threadIdx.y")
        sch.set_scope(total, 0, "local")
        sch.reverse_compute_at(output, tk, preserve_unit_loops=True)
        return sch

    @staticmethod
    def _tile(problem: Problem, config: Config) -> Tile:
        """Return a thread's tile, with the instructions and numbers that it takes."""
        return tile_of(problem.workload, config.vector, config.rows, config.columns)


def _bind_threads(sch: Schedule, y: LoopRV, x: LoopRV) -> None:
    for loop, thread in ((y, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(loop, thread)


def _into_registers(sch: Schedule, block: SBlockRV, is_vector: bool) -> None:
    """Put a stage of rows, columns and channels into registers."""
    sch.set_scope(block, 0, "local")
    *_, row, column, lane = sch.get_loops(block)
    sch.unroll(row)
    sch.unroll(column)
    (sch.vectorize if is_vector else sch.unroll)(lane)


template = WeightGradientNhwc()
