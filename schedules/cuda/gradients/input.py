"""The gradient of a depthwise convolution by its input on CUDA, computed like the convolution itself.

A thread reads a window of the output's gradient into registers, and writes a tile of all phases of the stride. A window
that registers do not hold is read through the cache, for each product.
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
from ..machine import LINE, SECTOR, SUM_BYTES
from ..model import Axes, Counts, memory_bytes, touched
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
    obstacle,
    threads_of_axis,
    window_shape,
)

BLOCKS, ROWS, COLUMNS = (64, 128, 256), (1, 2, 3, 4, 8), (1, 2, 4, 8)
"""The threads of blocks, and the rows and the columns of threads, that a default is chosen from."""

LOADS = (4, 2, 1, 0)
"""The values of the knob `load`."""


@dataclass(frozen=True)
class Config(InputTiles):
    """The knobs."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"threads_z": "threads_c"}

    load: int
    """The number of columns of a window that are read together into registers; 0 to read it through the cache."""


def products(workload: ConvWorkload, config: Config) -> int:
    """Return the multiply-adds of a thread for each output channel of its input channel."""
    return prod(workload.kernel) * prod(config.tile)


def window(workload: ConvWorkload, config: Config) -> int:
    """Return the elements of a thread's window in registers."""
    return config.load * prod(window_shape(workload, config.tile, config.load)) if config.load else 0


def store_width(workload: ConvWorkload, config: Config) -> int:
    """Return the neighbouring columns that a thread stores together."""
    columns = config.thread_x * workload.stride[1]
    return next(size for size in (4, 2, 1) if workload.width % size == 0 and columns % size == 0)


def _read(workload: ConvWorkload, config: Config) -> int:
    """Return the lines that a warp touches as each thread loads from the output's gradient."""
    (height, width), size = workload.output_size, workload.itemsize
    steps = height * width * size, config.thread_y * width * size, config.thread_x * size
    return touched(_threads(config), steps, max(1, config.load) * size, LINE)


def _written(workload: ConvWorkload, config: Config, unit: int) -> int:
    """Return the units of `unit` bytes that a warp touches as each thread stores its columns."""
    size, (sh, sw) = workload.itemsize, workload.stride
    row = workload.width * size
    steps = workload.height * row, config.thread_y * sh * row, config.thread_x * sw * size
    return touched(_threads(config), steps, store_width(workload, config) * size, unit)


def _threads(config: Config) -> Axes:
    return config.threads_c, config.threads_y, config.threads_x


class InputGradient(GpuTemplate[Config]):
    """The gradient of a depthwise convolution by its input."""

    DIRECTIONS = ("input_gradient",)
    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, 1, load=0)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload, direction="input_gradient")
        for workload in (
            ConvWorkload.depthwise((2, 4, 32, 31), (4, 1, 3, 3), stride=2),
            ConvWorkload.depthwise((1, 4, 19, 24), (4, 2, 5, 3), dtype="float16"),
        )
    )

    MAX_UNROLLED = 2048
    """The most multiply-adds of a thread that follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle(problem)

    def registers(self, problem: Problem, config: Config) -> int:
        sums = prod(config.tile) * prod(problem.workload.stride)
        counted = min(sums, COUNTED) if config.tile == (1, 1) else sums
        return counted + window(problem.workload, config) + OTHER_REGISTERS

    def blocks(self, problem: Problem, config: Config) -> int:
        tiles_y, tiles_x = map(ceil_div, compute.phase_sizes(problem.workload), config.tile)
        planes = problem.workload.batch * ceil_div(problem.workload.in_channels, config.threads_c)
        return planes * ceil_div(tiles_y, config.threads_y) * ceil_div(tiles_x, config.threads_x)

    def instructions(self, problem: Problem, config: Config) -> int:
        return products(problem.workload, config) if config.load else 0

    def threads_z(self, config: Config) -> int:
        return config.threads_c

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def whole_channels(config: Config) -> bool:
            return workload.in_channels % config.threads_c == 0

        def whole_loads(config: Config) -> bool:
            return config.load == 0 or config.thread_x % config.load == workload.output_size[1] % config.load == 0

        def little_code(config: Config) -> bool:
            return config.load == 0 or not config.is_cut(workload)

        return named(whole_channels, whole_loads, little_code)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield small tiles, in blocks that have a whole row of a plane if the row has at most 64 tiles."""
        workload, (height, width) = problem.workload, compute.phase_sizes(problem.workload)
        for threads, thread_y, thread_x, load in product(BLOCKS, upto(height, *ROWS), upto(width, *COLUMNS), LOADS):
            threads_x = threads_of_axis(ceil_div(width, thread_x), min(64, threads))
            threads_y = threads_of_axis(ceil_div(height, thread_y), max(1, threads // threads_x))
            max_c = min(self.MAX_THREADS_Z, max(1, threads // (threads_x * threads_y)))
            threads_c = divisors(workload.in_channels, max_c)[-1]
            yield Config(threads_c, threads_y, threads_x, thread_y, thread_x, load)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        height, width = compute.phase_sizes(problem.workload)
        knobs = {
            "threads_c": divisors(problem.workload.in_channels, 8),
            "threads_y": upto(height, 1, 2, 4, 7, 8, 14, 16),
            "threads_x": upto(width, 4, 7, 8, 14, 16, 28, 32, 56),
            "thread_y": upto(height, 1, 2, 4, 7, 8),
            "thread_x": upto(width, 1, 2, 4, 8),
            "load": LOADS,
        }
        return with_default(knobs, default)

    def heuristics(self, problem: Problem) -> Tests[Config]:
        height, width = compute.phase_sizes(problem.workload)

        def full_warps(config: Config) -> bool:
            return 2 * WARP <= config.threads <= 256 and wasted(config.threads, WARP) <= 1.2

        def little_waste(config: Config) -> bool:
            rows, columns = config.threads_y * config.thread_y, config.threads_x * config.thread_x
            return wasted(height, rows) * wasted(width, columns) <= 1.2

        return named(full_warps, little_waste)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, converted = problem.workload, problem.workload.itemsize < SUM_BYTES
        taps, outputs = prod(workload.kernel), prod(config.tile) * prod(workload.stride)
        sums, read = products(workload, config), window(workload, config)
        if config.load:
            loads, in_flight = read / config.load, IN_FLIGHT
            of_channel = sums + loads * LOADING + read * converted + taps * (1 + converted)
            of_taps = taps
        else:
            loads, in_flight = sums, CACHED_IN_FLIGHT
            of_channel, of_taps = sums * (CACHED_LOADING + 1 + 2 * converted), sums
        stores = outputs / store_width(workload, config)
        issued = workload.multiplier * of_channel + outputs * STORING + BEGINNING
        warps = ceil_div(config.threads, WARP)
        reached, _ = config.block_elements(workload)
        fetched = workload.multiplier * config.threads_c * (reached + taps) * workload.itemsize
        accessed = workload.multiplier * (loads * _read(workload, config) + of_taps)
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=fetched + warps * stores * SECTOR * _written(workload, config, SECTOR),
            accessed=warps * (accessed + stores * _written(workload, config, LINE)),
            arrivals=1 + workload.multiplier * loads / in_flight,
            serial=issued,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = problem.workload
        height, width = compute.phase_sizes(workload)
        return {
            "sums": prod(config.tile) * prod(workload.stride),
            "window": max(1, window(workload, config)),
            "products": products(workload, config),
            "waste_y": wasted(height, config.threads_y * config.thread_y),
            "waste_x": wasted(width, config.threads_x * config.thread_x),
            "taps": prod(workload.kernel),
            "plane": workload.height * workload.width,
            "channels": workload.in_channels,
            "images": workload.batch,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "window in registers": replace(config, load=0),
            "vector loads": replace(config, load=min(config.load, 1)),
            "tile in registers": replace(config, thread_y=1, thread_x=1, load=min(config.load, 1)),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, in tiles of a thread
        workload = compute.with_open_sizes(problem)
        tile, (sh, sw), load = config.tile, workload.stride, max(1, config.load)
        sch = Schedule(te.create_prim_func(compute.input_gradient(workload, tile, load)))
        window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))

        # Step 1. Tile the output: blocks, threads, and the rows and columns of a thread, all phases among them
        n, c, h, w = sch.get_loops(output)
        bz, tz = sch.split(c, [None, config.threads_c])
        by, ty, i, p = sch.split(h, [None, config.threads_y, tile[0], sh])
        bx, tx, j = sch.split(w, [None, config.threads_x, tile[1] * sw])
        sch.reorder(n, bz, by, bx, tz, ty, tx, i, p, j)
        sch.bind(sch.fuse(n, bz, by, bx), "blockIdx.x")
        for loop, thread in ((tz, "threadIdx.z"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
            sch.bind(loop, thread)

        # Step 2. Accumulate in registers, from a window in registers, or through the cache where it is too large
        sch.compute_at(sums, tx, preserve_unit_loops=True)
        sch.set_scope(sums, 0, "local")
        inner = sch.get_loops(sums)[-7:]
        q, r, s = inner[-3:]
        sch.reorder(q, r, s, *inner[:-3])
        if config.load:
            sch.compute_at(window, q, preserve_unit_loops=True)
            sch.set_scope(window, 0, "local")
            row, column, *vector = sch.get_loops(window)[-2 if load == 1 else -3 :]
            for loop in (row, column):
                sch.unroll(loop)
            for loop in vector:
                sch.vectorize(loop)
        else:
            sch.compute_inline(window)
        for loop in (*inner[:-3], *((r, s) if config.load else ())):
            sch.unroll(loop)
        for loop in sch.get_loops(sch.decompose_reduction(sums, q))[-4:]:
            sch.unroll(loop)

        # Step 3. Store neighbouring columns together
        store = store_width(workload, config)
        *_, i, p, j = sch.get_loops(output)
        j, vector = sch.split(j, [None, store])
        for loop in (i, p, j):
            sch.unroll(loop)
        sch.vectorize(vector)
        return sch


template = InputGradient()
