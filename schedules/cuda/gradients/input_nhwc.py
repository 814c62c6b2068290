"""The gradient of a depthwise convolution by its input on CUDA, of tensors in NHWC.

Neighbouring threads have neighbouring channels, as in `depthwise_nhwc`. A thread reads a window of the output's
gradient into registers, and writes a tile of all phases of the stride, of some channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, divisors, named, upto, wasted, with_default
from ...template import Layouts
from ..machine import SECTOR, SUM_BYTES
from ..model import Counts, in_runs, memory_bytes
from ..template import GpuTemplate, Tests
from . import (
    BEGINNING,
    CACHED_IN_FLIGHT,
    CACHED_LOADING,
    COUNTED,
    IN_FLIGHT,
    LOADING,
    OTHER_REGISTERS,
    STORING,
    InputTiles,
    obstacle_in_nhwc,
    threads_of_axis,
    window_shape,
)

MAX_TAPS = 100
"""The most taps: with larger kernels a thread would read an element for each product."""

BLOCKS, LANES = (64, 128, 256), (8, 32)
"""The numbers of threads of a block that a default is chosen from, and the most threads along the channels."""

ROWS, COLUMNS = (1, 2, 3, 4), (1, 2, 3, 4)
"""The rows and the columns of a thread that a default is chosen from."""

VECTORS = (1, 2, 4)
"""The numbers of channels of a thread."""


@dataclass(frozen=True)
class Config(InputTiles):
    """The knobs."""

    vector: int
    """The number of neighbouring channels of a thread."""
    in_registers: bool
    """True to read a window into registers, else through the cache for each product."""


def products(workload: ConvWorkload, config: Config) -> int:
    """Return the multiply-adds of a thread."""
    return config.vector * prod(workload.kernel) * prod(config.tile)


def window(workload: ConvWorkload, config: Config) -> int:
    """Return the elements of a thread's window."""
    return config.vector * prod(window_shape(workload, config.tile))


class InputGradientNhwc(GpuTemplate[Config]):
    """The gradient of a depthwise convolution by its input in NHWC."""

    DIRECTIONS = ("input_gradient",)
    LAYOUTS = Layouts(x=("NHWC",), output=("NHWC",))
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, 1, 1, in_registers=False)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload.in_nhwc(), direction="input_gradient")
        for workload in (
            ConvWorkload.depthwise((2, 16, 16, 15), (16, 1, 3, 3), stride=2),
            ConvWorkload.depthwise((1, 24, 9, 12), (24, 1, 5, 3), dtype="float16"),
        )
    )

    MAX_UNROLLED = 1024
    """The most multiply-adds of a thread that follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle_in_nhwc(problem, MAX_TAPS)

    def registers(self, problem: Problem, config: Config) -> int:
        sums = config.vector * prod(config.tile) * prod(problem.workload.stride)
        counted = min(sums, COUNTED) if config.tile == (1, 1) else sums
        return counted + (window(problem.workload, config) if config.in_registers else 0) + OTHER_REGISTERS

    def blocks(self, problem: Problem, config: Config) -> int:
        workload = problem.workload
        tiles_y, tiles_x = map(ceil_div, compute.phase_sizes(workload), config.tile)
        of_channels = workload.batch * ceil_div(workload.in_channels, config.threads_c * config.vector)
        return of_channels * ceil_div(tiles_y, config.threads_y) * ceil_div(tiles_x, config.threads_x)

    def instructions(self, problem: Problem, config: Config) -> int:
        return products(problem.workload, config) if config.in_registers else 0

    def threads_z(self, config: Config) -> int:
        return config.threads_y

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def whole_channels(config: Config) -> bool:
            return config.vector in VECTORS and workload.in_channels % (config.threads_c * config.vector) == 0

        def little_code(config: Config) -> bool:
            return not (config.in_registers and config.is_cut(workload))

        return named(whole_channels, little_code)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield small tiles, in blocks of up to 8 or 32 threads with neighbouring channels."""
        workload, (height, width) = problem.workload, compute.phase_sizes(problem.workload)
        tiles = product(upto(height, *ROWS), upto(width, *COLUMNS), (True, False))
        for vector, max_c, threads, (thread_y, thread_x, held) in product(VECTORS, LANES, BLOCKS, [*tiles]):
            if workload.in_channels % vector == 0:
                threads_c = divisors(workload.in_channels // vector, max_c)[-1]
                threads_x = threads_of_axis(ceil_div(width, thread_x), max(1, threads // threads_c))
                threads_y = threads_of_axis(ceil_div(height, thread_y), max(1, threads // (threads_c * threads_x)))
                yield Config(threads_c, threads_y, threads_x, thread_y, thread_x, vector, held)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        height, width = compute.phase_sizes(problem.workload)
        knobs = {
            "vector": VECTORS,
            "threads_c": divisors(problem.workload.in_channels, WARP),
            "threads_y": upto(height, 1, 2, 4, 7, 8),
            "threads_x": upto(width, 1, 2, 4, 7, 8, 14),
            "thread_y": upto(height, 1, 2, 3, 4, 7, 8),
            "thread_x": upto(width, 1, 2, 3, 4),
            "in_registers": (True, False),
        }
        return with_default(knobs, default)

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload, (height, width) = problem.workload, compute.phase_sizes(problem.workload)

        def whole_sectors(config: Config) -> bool:
            """Return whether neighbouring threads read a sector together, or all channels."""
            least = min(SECTOR, workload.in_channels * workload.itemsize)
            return config.vector * config.threads_c * workload.itemsize >= least

        def full_warps(config: Config) -> bool:
            return 2 * WARP <= config.threads <= 256 and wasted(config.threads, WARP) <= 1.2

        def little_waste(config: Config) -> bool:
            rows, columns = config.threads_y * config.thread_y, config.threads_x * config.thread_x
            return wasted(height, rows) * wasted(width, columns) <= 1.2

        return named(whole_sectors, full_warps, little_waste)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, vector = problem.workload, config.vector
        converted = workload.itemsize < SUM_BYTES
        taps, outputs = prod(workload.kernel), prod(config.tile) * prod(workload.stride)
        sums = products(workload, config)
        issued = sums + outputs * (STORING + vector) + BEGINNING
        if config.in_registers:
            loads, in_flight, accessed = window(workload, config) / vector, IN_FLIGHT, float(taps)
            issued += loads * (LOADING + vector * converted) + taps * (1 + vector * converted)
        else:
            loads, in_flight, accessed = sums / vector, CACHED_IN_FLIGHT, sums / vector
            issued += loads * (CACHED_LOADING + 2 * vector * converted)
        warps, run = ceil_div(config.threads, WARP), vector * config.threads_c * workload.itemsize
        words = max(1.0, vector * workload.itemsize / SUM_BYTES)
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target) * in_runs(run),
            fetched=max(run, SECTOR) * (sum(config.block_elements(workload)) + taps),
            accessed=warps * (loads + accessed + outputs) * words,
            arrivals=1 + loads / in_flight,
            serial=issued,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = problem.workload
        height, width = compute.phase_sizes(workload)
        return {
            "sums": config.vector * prod(config.tile) * prod(workload.stride),
            "window": window(workload, config),
            "products": products(workload, config),
            "run_bytes": config.vector * config.threads_c * workload.itemsize,
            "waste_y": wasted(height, config.threads_y * config.thread_y),
            "waste_x": wasted(width, config.threads_x * config.thread_x),
            "taps": prod(workload.kernel),
            "plane": workload.height * workload.width,
            "channels": workload.in_channels,
            "images": workload.batch,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "window in registers": replace(config, in_registers=False),
            "vector loads": replace(config, vector=1),
            "tile in registers": replace(config, thread_y=1, thread_x=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, in tiles of a thread
        workload = compute.with_open_sizes(problem)
        (ti, tj), (sh, sw) = config.tile, workload.stride
        sch = Schedule(te.create_prim_func(compute.input_gradient(workload, config.tile)))
        window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))
        store = sch.cache_write(output, 0, "local")

        # Step 1. Tile the output: blocks, threads, and the pixels of a thread, all phases among them
        n, h, w, c = sch.get_loops(store)
        by, ty, i, p = sch.split(h, [None, config.threads_y, ti, sh])
        bx, tx, j, o = sch.split(w, [None, config.threads_x, tj, sw])
        bc, tc, lane = sch.split(c, [None, config.threads_c, config.vector])
        sch.reorder(n, by, bx, bc, ty, tx, tc, i, p, j, o, lane)
        sch.bind(sch.fuse(n, by, bx, bc), "blockIdx.x")
        for loop, thread in ((ty, "threadIdx.z"), (tx, "threadIdx.y"), (tc, "threadIdx.x")):
            sch.bind(loop, thread)

        # Step 2. Store vectors of channels
        for loop in (i, p, j, o):
            sch.unroll(loop)
        sch.compute_at(output, o, preserve_unit_loops=True)
        sch.unroll(sch.get_loops(output)[-1])
        sch.vectorize(lane)

        # Step 3. Accumulate in registers, from a window in registers, or through the cache where it is too large
        sch.compute_at(sums, tc, preserve_unit_loops=True)
        sch.set_scope(sums, 0, "local")
        *_, c, _, _, i_, p_, j_, o_, q, r, s = sch.get_loops(sums)
        inner = (i_, p_, j_, o_, c)
        sch.reorder(q, r, s, *inner)
        if config.in_registers:
            sch.compute_at(window, q, preserve_unit_loops=True)
            sch.set_scope(window, 0, "local")
            *_, k, _, _, row, column = sch.get_loops(window)
            sch.reorder(row, column, k)
            for loop in (row, column):
                sch.unroll(loop)
            sch.vectorize(k)
        else:
            sch.compute_inline(window)
        for loop in (*inner, *((r, s) if config.in_registers else ())):
            sch.unroll(loop)
        for loop in sch.get_loops(sch.decompose_reduction(sums, q))[-5:]:
            sch.unroll(loop)
        return sch


template = InputGradientNhwc()
