"""Convolution by a sparse weight on a CPU: the template in which every weight becomes an immediate, or nothing.

A task stages a padded band of the input, in which the pixels of all rows are numbered through; then each block of
output channels goes over the band's pixels, so many vectors at a time, in code of its own whose sums are in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.compute.annotations import SHARES, UNROLLED
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import cpu_of

from ..space import ceil_div, ceil_to, divisors, named, tile_sizes, wasted
from ..template import Fused, Layouts
from .machine import PARALLEL_FLOPS
from .template import CpuTemplate, Tests


@dataclass(frozen=True)
class Config:
    """The knobs."""

    block_m: int
    """The number of output channels of a block, whose sums are in registers."""
    vectors: int
    """The number of vectors of pixels that a block computes at a time."""
    rows: int
    """The number of rows of output of a band."""
    shares: int
    """The number of tasks of a band, each of which stages it and does its share of the blocks."""
    parallel: bool
    """True to spread the tasks over the threads of the machine."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"channels": "block_m"}


LEAST_TILES = 12
"""The least number of tiles of a band that is worth the time that reading its code takes."""

ROW_PIECE = 64
"""The largest number of pixels of a row that are stored at once: LLVM makes vectors of them."""

FASTER = 0.4
"""The share of non-zeros at which the sparse kernel takes as long for a pixel as the dense one."""

CODE_PIXELS, WEIGHT_PIXELS = 600, 64
"""The pixels that a kernel computes while the code of a weight, or a weight, comes from memory.

Code takes four times the bytes, and is fetched a line at a time, where processors read ahead of loads of data.
"""

SUMS = 24
"""The number of vectors of sums in registers, of 32; of 16 it is half."""


def _sums(target: tvm.target.Target) -> int:
    return SUMS * cpu_of(target).registers // 32


def _unroll(sch: Schedule, *others: LoopRV, k: LoopRV) -> None:
    for loop in others:
        sch.annotate(loop, UNROLLED, "other")
    sch.annotate(k, UNROLLED, "k")


class Sparse(CpuTemplate[Config]):
    """Convolution by a weight that is compiled in, on a CPU."""

    LAYOUTS: Layouts | Fused = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, parallel=False)
    examples = (
        Problem(
            ConvWorkload.conv2d((1, 4, 8, 10), (7, 4, 3, 3), scale=True, residual=True, activation="relu"), sparsity=0.7
        ),
        Problem(ConvWorkload.depthwise((1, 6, 13, 14), (6, 2, 3, 3), stride=(2, 1), dtype="float16"), sparsity=0.5),
        Problem(ConvWorkload.conv2d((2, 12, 9, 9), (10, 6, 3, 3), groups=2), sparsity=0.8, open_sizes=OPEN_SIZES),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take weights that are compiled in."""
        return None if problem.sparsity is not None else "is for weights that are compiled in"

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        return {
            "block_m": (2, 3, 4, 6, 8, 12, 16, 24),
            "vectors": (1, 2, 3, 4, 6),
            "rows": tile_sizes(problem.workload.output_size[0]),
            "shares": (1, 2, 4),
            "parallel": (False, True),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload = problem.workload

        def registers(config: Config) -> bool:
            return config.block_m * config.vectors <= _sums(target)

        def rows(config: Config) -> bool:
            return config.rows <= workload.output_size[0]

        def shares(config: Config) -> bool:
            return config.shares <= ceil_div(workload.out_channels, config.block_m)

        return named(registers, rows, shares)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:

        def registers_used(config: Config) -> bool:
            return config.block_m * config.vectors >= _sums(target) // 2

        def threads_for_work(config: Config) -> bool:
            return config.parallel or config.shares == 1

        return named(registers_used, threads_for_work)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> tuple[Config]:
        """Return the configuration that should be the fastest for a share of non-zeros."""
        workload = problem.workload
        height, _ = workload.output_size
        lanes, pitch = cpu_of(target).lanes, compute.band_pitch(workload)
        parallel = problem.density * workload.flops >= PARALLEL_FLOPS
        # A second vector would share only the weights with the first, which instructions read on the way: for as many
        # sums fewer channels would share an element of the input, and the code would be longer.
        channels = min(_sums(target), workload.out_channels)

        # Bands that stay in the second cache; several tiles each, or the code of all channels is read for a few pixels
        row_bytes = workload.sum_bytes * workload.in_channels * prod(workload.stride) * pitch
        limit = max(1, cpu_of(target).l2_bytes // row_bytes - workload.window[0] // workload.stride[0])
        threads = int(target.attrs.get("num-cores", 1)) if parallel else 1
        bands = max(ceil_div(height, limit), 1)
        shares = 1
        if workload.batch * bands < threads:
            if pitch * height >= threads * LEAST_TILES * lanes:
                bands = ceil_div(threads, workload.batch)
            else:
                shares = min(ceil_div(threads, workload.batch * bands), ceil_div(workload.out_channels, channels))
        elif workload.batch * bands % threads:
            bands = min(ceil_to(bands, threads), height)
        return (Config(channels, 1, ceil_div(height, bands), shares, parallel),)

    def estimate(self, problem: Problem, config: Config, target: tvm.target.Target) -> float:
        """Return the cycles that a core should take for an image, which are in proportion to the share of non-zeros."""
        workload = problem.workload
        cpu = cpu_of(target)
        return problem.density / FASTER * workload.flops / 2 / workload.batch / cpu.lanes / cpu.fma_units

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload = problem.workload
        height, _ = workload.output_size
        pitch, (stride, _) = compute.band_pitch(workload), workload.stride
        read = (config.rows - 1) * stride + workload.window[0]
        return {
            "sums": config.block_m * config.vectors,
            "blocks": ceil_div(workload.out_channels, config.block_m),
            "tasks": workload.batch * ceil_div(height, config.rows) * config.shares,
            "tile": config.vectors / (pitch * config.rows),
            "code": config.vectors * workload.out_channels * workload.w_shape[1] * prod(workload.kernel),
            "band_bytes": workload.sum_bytes * workload.in_channels * read * workload.stride[1] * pitch,
            "halo": read / (config.rows * stride),
            "waste_rows": wasted(height, config.rows),
            "waste_channels": wasted(workload.out_channels, config.block_m),
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "shared inputs": replace(config, block_m=1),
            "shares": replace(config, shares=1),
            "threads": replace(config, parallel=False, shares=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation with all output channels in a block; the config must be legal."""
        workload = compute.with_open_sizes(problem)
        # Step 0. The computation, in bands of rows and whole tiles of pixels
        lanes = cpu_of(target).lanes
        sch = Schedule(te.create_prim_func(compute.sparse_rows(workload, config.rows, config.vectors, lanes)))
        pad, accumulate, rows, output = (sch.get_sblock(name) for name in ("pad", "sparse", "rows", "output"))

        # Step 1. A band is a task, or several with a share of the output channels each
        sch.compute_inline(rows)
        n, k, y, _ = sch.get_loops(output)
        band, yi = sch.split(y, [None, config.rows])
        sch.reorder(n, band, yi, k)
        task = sch.fuse(n, band)
        sch.annotate(task, SHARES, config.shares)
        if config.parallel:
            sch.parallel(task)
        sch.annotate(k, UNROLLED, "k")

        # Step 2. Sum the pixels of a tile in registers, and keep those of the band
        sch.compute_at(accumulate, task, preserve_unit_loops=True)
        keep = sch.cache_write(accumulate, 0, "local")
        k, tile, vector, lane = sch.get_loops(keep)[-4:]
        sch.reorder(tile, vector, k, lane)
        sch.compute_at(accumulate, tile, preserve_unit_loops=True)
        sch.vectorize(lane)
        _unroll(sch, vector, k=k)

        # Step 3. Tap by tap; each vector of the input meets the weights of all output channels
        k, _, vector, lane, c, r, s = sch.get_loops(accumulate)[-7:]
        sch.reorder(c, r, s, vector, k, lane)
        sch.vectorize(lane)
        init = sch.decompose_reduction(accumulate, c)
        _unroll(sch, c, r, s, vector, k=k)
        vector, k, lane = sch.get_loops(init)[-3:]
        _unroll(sch, vector, k=k)

        # Step 4. Store the band, in vectors that divide its rows
        column = sch.get_loops(output)[-1]
        _, lane = sch.split(column, [None, max(divisors(workload.output_size[1], ROW_PIECE))])
        sch.vectorize(lane)

        # Step 5. Stage the band
        sch.compute_at(pad, task, preserve_unit_loops=True)
        return sch

    def pays(
        self,
        problem: Problem,
        config: Config,
        target: tvm.target.Target,
        weight_bytes: int,
        dense_cycles: Callable[[], float],
    ) -> bool:
        """Return whether the kernel should be faster than the dense one, in a network with weights of `weight_bytes`.

        The sparse kernel has no model of its cycles, so that those of the dense one are not asked for. In a small
        network, what counts is the arithmetic. In a large one code and weights come from memory in each call: where
        there are few pixels to compute, that takes longer than all else.
        """
        workload = problem.workload
        pixels = workload.batch * prod(workload.output_size)
        read, weight = (CODE_PIXELS, WEIGHT_PIXELS) if weight_bytes > cpu_of(target).l3_bytes else (0, 0)
        return problem.density * (pixels + read) < FASTER * (pixels + weight)


template = Sparse()
