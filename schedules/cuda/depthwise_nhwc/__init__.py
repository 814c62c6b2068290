"""Depthwise convolution in NHWC on CUDA: a thread computes a tile of pixels of a few neighbouring channels.

Neighbouring threads have neighbouring channels, so that a warp reads and writes whole lines. A thread goes down the
rows of its input once: each element is loaded, converted and tested for padding once, and added to all sums that it is
a term of, which stay in registers. Elements that neighbouring tiles share come from the caches. The taps are in shared
memory, by channels and in the type of sums; there is no other kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, ceil_to, divisors, evenly, named, upto, wasted, with_default
from ...template import Layouts
from ..gemm.schedule import begin
from ..machine import SECTOR, fetched_code
from ..model import Counts, in_runs, memory_bytes
from ..template import GpuTemplate, Tests
from .tiles import Config, blocks, edges, products, read, registers, registers_of, shared_bytes, vectors

MAX_REGISTERS, MAX_SUMS = 176, 128
"""The most registers that a thread's numbers take, of 255, and its outputs, most of which are stored early. Beyond them
compilers put numbers into memory."""

BLOCK_THREADS = (64, 128, 256)
"""The threads of a block of the default configuration, at most."""

ROWS, COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 14), (1, 2, 3, 4, 5, 7, 8)
"""The rows and columns of a thread."""

MAX_WASTE = 1.25
"""The largest ratio in the space of outputs that whole tiles compute to those wanted."""

LOADING, TESTING, STAGING, STORING, FINISHING, BEGINNING = 3.0, 8.0, 10.0, 3.0, 2.0, 60.0
"""The instructions of a load with its address, of the tests of one that may lie beyond an edge, of a tap that is
staged, of a store, of an output's epilogue, and those that a thread begins with."""

ACCESSED = 2 * SECTOR
"""The most neighbouring bytes of a warp's load or store that count as one access to the L1 cache."""


class DepthwiseNhwc(GpuTemplate[Config]):
    """Depthwise convolution in NHWC with one output for each channel."""

    LAYOUTS = Layouts(x=("NHWC",), output=("NHWC",), strided_x=("NHWC",))
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(1, 1, 1, 1, 1, 1, ahead=False)
    examples = (
        Problem(ConvWorkload.depthwise((2, 16, 9, 10), (16, 1, 3, 3), dtype="float16", residual=True).in_nhwc()),
        Problem(ConvWorkload.depthwise((2, 35, 11, 6), (35, 1, 3, 3), stride=2, scale=True).in_nhwc()),
        Problem(
            ConvWorkload.depthwise((1, 8, 13, 14), (8, 1, 5, 3), dilation=2, shift=True).in_nhwc(),
            open_sizes=OPEN_SIZES,
        ),
    )

    MAX_UNROLLED = 1600
    """The most multiply-adds of a thread, and also the most elements that it reads.

    They follow each other without a loop: NVRTC takes one or two seconds for this number.
    """

    WORTH_A_TRIAL = 1.3
    """The fastest measured configuration within it took 1.004 times the shortest time, in the mean of 14 problems."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take depthwise convolutions with one output for each channel, and a window that can be unrolled."""
        workload = problem.workload
        if not problem.is_depthwise:
            return "is for depthwise convolutions"
        if workload.multiplier > 1:
            return f"takes one output for each channel, not {workload.multiplier}"
        if problem.has_open_planes and workload.epilogue.residual:  # a tile would read it beyond its end
            return "takes no residual where a height or a width is left open"
        least = [replace(self.LEAST, threads_c=threads) for threads in _threads_c(workload, 1)]
        if not any(self.is_legal(problem, config, target) for config in least):
            rows, columns = workload.window
            return f"takes windows that it can unroll in registers, not of {rows}x{columns}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(problem.workload, config)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
        return int(target.attrs["max_shared_memory_per_block"])

    def threads_z(self, config: Config) -> int:
        return config.threads_y

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def instructions(self, problem: Problem, config: Config) -> int:
        loaded = config.vector * prod(read(problem.workload, config))
        return max(products(problem.workload, config), loaded)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload, (height, width) = problem.workload, problem.workload.output_size

        def whole_vectors(config: Config) -> bool:
            return config.vector in vectors(workload)

        def whole_channels(config: Config) -> bool:
            return workload.out_channels % config.channels == 0

        def registers_of_numbers(config: Config) -> bool:
            return registers(workload, config) <= MAX_REGISTERS and config.outputs <= MAX_SUMS

        def waste(config: Config) -> bool:
            return problem.has_open_planes or wasted(height, config.block_y) * wasted(width, config.block_x) <= 2

        return named(whole_vectors, whole_channels, registers_of_numbers, waste)

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        """Return the tests that a configuration must pass: registers are bounded by those of numbers alone."""
        tests = super().constraints(problem, target)
        return {name: holds for name, holds in tests.items() if name != "registers"}

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterable[Config]:
        return dict.fromkeys(_candidates(problem.workload))  # some come several times

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload, (height, width) = problem.workload, problem.workload.output_size

        knobs: dict[str, Iterable[Any]] = {
            "vector": vectors(workload),
            "threads_c": divisors(workload.out_channels, 256),
            "threads_y": upto(height, 1, 2, 4, 7, 8, 14),
            "threads_x": upto(width, 1, 2, 4, 7, 8, 14),
            "thread_y": upto(height, *ROWS),
            "thread_x": upto(width, *COLUMNS),
            "ahead": (False, True),
        }
        return with_default(knobs, default)

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload, (height, width) = problem.workload, problem.workload.output_size

        def whole_sectors(config: Config) -> bool:
            """Return whether neighbouring threads read a sector together, or all channels where these are fewer."""
            return workload.out_channels % config.channels == 0 and config.channels >= _least_channels(workload)

        def full_warps(config: Config) -> bool:
            return WARP <= config.threads <= 512 and wasted(config.threads, WARP) <= 1.35

        def little_waste(config: Config) -> bool:
            return wasted(height, config.block_y) * wasted(width, config.block_x) <= MAX_WASTE

        return named(whole_sectors, full_warps, little_waste)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, warps = problem.workload, ceil_div(config.threads, WARP)
        rows, columns = read(workload, config)
        taps, loads, stores = prod(workload.kernel), rows * columns, config.thread_y * config.thread_x
        staged = taps * config.vector / (config.threads_y * config.threads_x)
        converted = config.vector * (workload.dtype != workload.storage.sums)
        tests = edges(workload, config, problem.has_open_planes) * (TESTING + config.vector)
        unrolled = products(workload, config) + loads * (LOADING + converted) + tests + taps
        unrolled += stores * STORING + config.outputs * FINISHING
        issued = fetched_code(unrolled + staged * STAGING + BEGINNING)
        run, block = config.channels * workload.itemsize, (config.block_y, config.block_x)
        pixels = prod(map(min, workload.read_by(block), (workload.height, workload.width)))
        pixels += prod(map(min, block, workload.output_size))
        wide = max(1.0, WARP * config.vector * workload.itemsize / min(run, ACCESSED))
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target) * in_runs(run),
            fetched=pixels * max(run, SECTOR) + taps * run,
            accessed=warps * ((loads + stores) * wide + taps * config.vector + staged),
            arrivals=2 + (0 if config.ahead else rows),
            serial=issued,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload, (height, width) = problem.workload, problem.workload.output_size
        rows, columns = read(workload, config)
        return {
            "products": products(workload, config),
            "registers": registers(workload, config),
            "idle_lanes": ceil_to(config.threads, WARP) / config.threads,
            "outputs": config.outputs,
            "block_y": config.block_y,
            "block_x": config.block_x,
            "waste_y": wasted(height, config.block_y),
            "waste_x": wasted(width, config.block_x),
            "halo": rows * columns / (config.thread_y * config.thread_x * prod(workload.stride)),
            "block_halo": prod(workload.read_by((config.block_y, config.block_x))) / (config.block_y * config.block_x),
            "run_bytes": config.channels * workload.itemsize,
            "shared_bytes": shared_bytes(workload, config),
            "taps": prod(workload.kernel),
            "plane": height * width,
            "channels": workload.out_channels,
            "images": workload.batch,
        }

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        """Return features for a cost model besides the knobs, among them how blocks share the GPU."""
        gpu, grid = gpu_of(target), blocks(problem.workload, config)
        share, resident = ceil_div(grid, gpu.multiprocessors), self.resident_blocks(problem, config, gpu)
        return {
            **super().features(problem, config, target),
            "resident": resident,
            "warps_per_sm": min(share, resident) * ceil_div(config.threads, WARP),
            "balance": share * gpu.multiprocessors / grid,
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        return {
            "vector loads": replace(config, vector=1),
            "tile in registers": replace(config, thread_y=1, thread_x=1),
            "input ahead": replace(config, ahead=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation; the config must be legal."""
        # Step 0. The computation, rounded up to whole tiles
        tile, thread = (config.block_y, config.block_x), (config.thread_y, config.thread_x)
        sch = begin(compute.depthwise_rows(compute.with_open_sizes(problem), tile, thread), problem)
        nearest, wide, pad, taps, accumulate, sums, output = (
            sch.get_sblock(name) for name in ("nearest", "wide", "pad", "taps", "depthwise", "sums", "output")
        )
        sch.compute_inline(sums)
        operands = [sch.cache_read(output, operand, "local") for operand in range(1, len(sch.get(output).reads))]
        store = sch.cache_write(output, 0, "local")

        # Step 1. Tile the output: blocks, threads, then what a thread owns
        n, y, x, k = sch.get_loops(store)
        by, ty, yi = sch.split(y, [None, config.threads_y, config.thread_y])
        bx, tx, xi = sch.split(x, [None, config.threads_x, config.thread_x])
        bk, tk, lane = sch.split(k, [None, config.threads_c, config.vector])
        blocks = (n, bk, by, bx) if problem.has_open_planes else (n, by, bx, bk)
        sch.reorder(*blocks, ty, tx, tk, yi, xi, lane)
        # TVM cannot tell what a block reads where its indices come from a division by a number of tiles.
        axes = (sch.fuse(n, bk), by, bx) if problem.has_open_planes else (sch.fuse(*blocks),)
        for axis, name in zip(axes, ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
            sch.bind(axis, name)
        block = axes[-1]
        _bind_threads(sch, ty, tx, tk)

        # Step 2. The epilogue, a vector at a time
        for loop in (yi, xi):
            sch.unroll(loop)
        sch.vectorize(lane)
        sch.compute_at(output, xi, preserve_unit_loops=True)
        sch.unroll(sch.get_loops(output)[-1])
        for operand in operands:  # scale and shift are the same for all pixels
            of_pixels = len(sch.get(operand).iter_vars) > 1
            sch.compute_at(operand, xi if of_pixels else tk, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(operand)[-1])

        # Step 3. Add up row by row of the input
        sch.compute_at(accumulate, tk, preserve_unit_loops=True)
        sch.set_scope(accumulate, 0, "local")
        yi, xi, lane, row, s = sch.get_loops(accumulate)[-5:]
        sch.reorder(row, s, yi, xi, lane)
        for loop in (row, s, yi, xi, lane):
            sch.unroll(loop)
        for stage, around in ((pad, row), (wide, row), (nearest, tk if config.ahead else row)):
            sch.compute_at(stage, around, preserve_unit_loops=True)
            sch.set_scope(stage, 0, "local")
            *_, rows, columns, lane = sch.get_loops(stage)
            for loop in (rows, columns):
                sch.unroll(loop)
            (sch.vectorize if stage is nearest else sch.unroll)(lane)

        # Step 4. Stage the taps, in the order of the filters in memory
        sch.compute_at(taps, block, preserve_unit_loops=True)
        sch.set_scope(taps, 0, "shared")
        r, s, k = sch.get_loops(taps)[-3:]
        sch.reorder(k, r, s)
        threads = config.threads_y, config.threads_x, config.threads_c
        _, *loops = sch.split(sch.fuse(k, r, s), [None, *threads])
        _bind_threads(sch, *loops)

        init = sch.decompose_reduction(accumulate, row)
        for loop in sch.get_loops(init)[-3:]:
            sch.unroll(loop)
        return sch


def _candidates(workload: ConvWorkload) -> Iterator[Config]:
    """Yield configurations for the default; not all are legal."""
    height, width = workload.output_size
    for vector, rows, columns in product(vectors(workload), ROWS, COLUMNS):
        if rows > height or columns > width:
            continue
        tiles_y, tiles_x = ceil_div(height, rows), ceil_div(width, columns)
        for threads_c in _threads_c(workload, vector):
            for threads in BLOCK_THREADS:
                thread_limit = max(1, threads // threads_c)
                threads_x = evenly(tiles_x, thread_limit)
                threads_y = evenly(tiles_y, max(1, thread_limit // threads_x))
                for ahead in (False, True):
                    yield Config(vector, threads_c, threads_y, threads_x, rows, columns, ahead)


def _threads_c(workload: ConvWorkload, vector: int) -> tuple[int, ...]:
    """Return numbers of threads along the channels that fill a sector: 8 to 64, the least and the two largest."""
    known = divisors(workload.out_channels // vector, 256)
    enough = [each for each in known if each * vector >= _least_channels(workload)] or known[-1:]
    return tuple(sorted({*(each for each in enough if each in (8, 16, 32, 64)), *enough[:1], *enough[-2:]}))


def _least_channels(workload: ConvWorkload) -> int:
    """Return the number of neighbouring channels that fill a sector, or all if they do not."""
    return min(SECTOR // workload.itemsize, workload.out_channels)


def _bind_threads(sch: Schedule, y: LoopRV, x: LoopRV, c: LoopRV) -> None:
    for loop, thread in ((c, "threadIdx.x"), (x, "threadIdx.y"), (y, "threadIdx.z")):
        sch.bind(loop, thread)


template = DepthwiseNhwc()
