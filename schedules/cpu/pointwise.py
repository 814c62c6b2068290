"""1x1 convolution on a CPU: vectors run over a plane's pixels, so that results are stored as they are summed.

The tiles of `direct` have their vectors over output channels and are transposed before they are stored, which takes as
long as the sums of some hundred channels. On Zen 5 16 to 96 channels at 112x112 take 200 µs here, and 410 there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import MAX_LANES, cpu_of

from ..space import ceil_div, named, tile_sizes, wasted
from ..template import Layouts
from .machine import PARALLEL_FLOPS, STACK_BYTES, staged_bytes
from .model import Counts, Read, allocations, by_cache, operands, packed_weight, pieces, spilled, threads_of
from .template import CpuTemplate, Tests, threads_for_work

MAX_TILES = 4
"""The largest number of tiles of a task, where a plane is whole vectors."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    vectors: int
    """The number of vectors of pixels in a register tile."""
    vector: int
    """The number of lanes of a vector."""
    block: int
    """The number of output channels of a register tile."""
    tiles: int
    """The number of register tiles of a task, one behind the other in a plane."""
    parallel: bool
    """True to spread the tasks over the threads of the machine."""


def computed_together(problem: Problem, config: Config) -> int:
    """Return the number of pixels that planes are computed in whole multiples of: a task's, or a tile's if open."""
    return config.vector * config.vectors * (1 if problem.has_open_planes else config.tiles)


def _function(problem: Problem, config: Config) -> tirx.PrimFunc:
    return _schedule(problem, config).mod["main"]


def _schedule(problem: Problem, config: Config) -> Schedule:
    """Schedule the computation; of a plane whose size is known only when the kernel runs, for tiles of pixels."""
    workload, lanes, in_rows = compute.with_open_sizes(problem), config.vector, problem.has_open_planes
    # Step 1. A task is a band of a plane's pixels, for a block of channels: consecutive ones share their pixels
    vectors = config.vectors if in_rows else config.vectors * config.tiles
    sch = Schedule(te.create_prim_func(compute.pointwise(workload, config.block, vectors, lanes)))
    packed, accumulate, output = (sch.get_sblock(name) for name in ("packed", "pointwise", "output"))
    sch.compute_inline(sch.get_sblock("pixels"))
    if workload.groups > 1:
        sch.reverse_compute_inline(output)
        output = sch.get_sblock("groups")
    n, *group, k, row, p = sch.get_loops(output)
    kb, ki = sch.split(k, [None, config.block])
    kb = sch.fuse(*group, kb)
    if in_rows:
        pb, po = sch.split(row, [None, config.tiles])
        pi, vector = sch.split(p, [None, lanes])
        bands = [pb]
    elif vectors * lanes < prod(workload.output_size):
        pb, po, pi, vector = sch.split(p, [None, config.tiles, config.vectors, lanes])
        bands = [pb]
    else:
        po, pi, vector = sch.split(p, [None, config.vectors, lanes])
        bands = []
    sch.reorder(n, *bands, kb, po, ki, pi, vector)
    task = sch.fuse(n, *bands, kb)
    block = sch.get_loops(packed)[0]
    if config.parallel:
        sch.parallel(task)
        sch.parallel(block)

    # Step 2. Sum a tile in registers, and store it
    sch.compute_at(accumulate, po, preserve_unit_loops=True)
    if not in_rows:
        sch.annotate(po, "pragma_loop_partition_hint", True)  # only the last tile tests where the plane ends
    *sums, c = sch.get_loops(accumulate)[-5:]
    sch.reorder(c, *sums)
    for loop in (ki, pi, *sums[:3]):
        sch.unroll(loop)
    for loop in (vector, sums[3]):
        sch.vectorize(loop)
    sch.decompose_reduction(accumulate, c)
    return sch


class Pointwise(CpuTemplate[Config]):
    """1x1 convolution on a CPU, with vectors over the pixels of a plane."""

    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(1, 1, 1, 1, parallel=False)
    examples = (
        Problem(ConvWorkload.conv2d((3, 8, 16, 17), (10, 8, 1, 1), scale=True, shift=True, activation="relu")),
        Problem(ConvWorkload.conv2d((1, 12, 9, 10), (21, 4, 1, 1), groups=3, residual=True, dtype="float16")),
        Problem(ConvWorkload.conv2d((2, 40, 15, 23), (60, 40, 1, 1), dtype="bfloat16"), open_sizes=OPEN_SIZES),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take 1x1 convolutions without strides and padding, of planes with a vector of pixels or more."""
        workload = problem.workload
        if not problem.is_dense:
            return "is for dense convolutions"
        if not workload.kernel == workload.stride == (1, 1) or any(workload.padding):
            return "takes 1x1 kernels with a stride of 1 and without padding"
        if (pixels := prod(workload.output_size)) < MAX_LANES:
            return f"takes planes of {MAX_LANES} pixels or more, not {pixels}"
        return None

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        workload, native = problem.workload, cpu_of(target).lanes
        return {
            "vectors": tuple(range(1, 8)),
            "vector": (native,),
            "block": tuple(range(1, 17)),
            "tiles": tile_sizes(ceil_div(prod(workload.output_size), native)),
            "parallel": (True, False),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload = problem.workload

        def one_vector(config: Config) -> bool:
            return config.vector <= min(cpu_of(target).lanes, prod(workload.output_size))

        def registers(config: Config) -> bool:
            return config.vectors * (config.block + 1) + 1 <= cpu_of(target).registers

        def waste(config: Config) -> bool:
            little = wasted(prod(workload.output_size), computed_together(problem, config)) <= 2
            return little and config.block <= max(8, 2 * workload.multiplier)

        return named(one_vector, registers, waste)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload, cpu = problem.workload, cpu_of(target)

        def enough_sums(config: Config) -> bool:
            return config.vectors * config.block >= cpu.fma_units * cpu.fma_latency

        def little_waste(config: Config) -> bool:
            pixels = wasted(prod(workload.output_size), computed_together(problem, config))
            return pixels <= 1.3 and wasted(workload.multiplier, config.block) <= 1.3

        return named(enough_sums, little_waste, threads_for_work(workload))

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        workload = problem.workload
        cpu, plane = cpu_of(target), prod(workload.output_size)
        lanes = min(cpu.lanes, 1 << plane.bit_length() - 1)
        parallel = workload.flops >= PARALLEL_FLOPS

        def config(vectors: int) -> Config:
            # Sums that are in registers alone, beside the pixels, a weight, and one to spare.
            sums = min(STACK_BYTES // (workload.sum_bytes * lanes), cpu.registers - vectors - 2)
            block = min(sums // vectors, workload.multiplier)
            # Where a plane has a part of a vector at its end, the loop over all its tiles has a copy for the last. Else
            # a task is a few tiles, which read what is still in the first cache and store more than a line of each
            # channel.
            tiles = ceil_div(plane, vectors * lanes)
            if problem.has_open_planes:
                tiles = MAX_TILES
            elif plane % lanes == 0:
                tiles = max(each for each in range(1, MAX_TILES + 1) if wasted(tiles, each) <= 1.02)
            return Config(vectors, lanes, block, tiles, parallel)

        limit = ceil_div(plane, lanes)
        return (config(vectors) for vectors in {min(vectors, limit) for vectors in (2, 3)})

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, cpu = problem.workload, cpu_of(target)
        pixels, channels, of_tile = prod(workload.output_size), workload.w_shape[1], config.vectors * config.vector
        blocks = workload.groups * ceil_div(workload.multiplier, config.block)
        bands = ceil_div(pixels, of_tile * config.tiles)
        tiles = workload.batch * blocks * bands * min(config.tiles, ceil_div(pixels, of_tile))
        steps, vectors = tiles * channels, config.vectors * pieces(config.vector, cpu)
        is_tested = config.tiles == 1 < bands and pixels % of_tile > 0  # each tile, whether the plane goes on
        block_bytes = channels * config.block * staged_bytes(workload)  # of the weight
        band_bytes = channels * min(pixels, of_tile * config.tiles) * workload.itemsize
        return Counts(
            tasks=workload.batch * blocks * bands if config.parallel else 1,
            threads=threads_of(target, config.parallel),
            loops=(1 + (not problem.constant_weight)) * config.parallel,
            multiplied=steps * vectors * config.block,
            loaded=steps * vectors,
            chained=steps,
            broadcast=steps * config.block,
            split=steps * vectors * (pixels % config.vector > 0),
            spilled=spilled(steps, config.vectors * (config.block + 1) + 1, cpu),
            allocated=allocations(tiles, workload.sum_bytes * config.block * of_tile),
            issued=steps * vectors * is_tested,
            stored=tiles * vectors * config.block,
            packed=packed_weight(problem),
            **by_cache(
                cpu,
                *operands(problem),
                Read(tiles * block_bytes, block_bytes),
                Read(tiles * channels * of_tile * workload.itemsize, band_bytes),
            ),
        )

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload = problem.workload
        plane, tile = prod(workload.output_size), config.vectors * config.block
        pixels = config.vectors * config.vector
        return {
            "tile": tile,
            "loads": (config.vectors + config.block) / tile,
            "waste_pixels": wasted(plane, pixels * config.tiles),
            "waste_channels": wasted(workload.multiplier, config.block),
            "cycles": self.estimate(problem, config, target),
            "tile_bytes": workload.itemsize * pixels * workload.w_shape[1],
            "weight_bytes": staged_bytes(workload) * config.block * workload.w_shape[1],
            "ragged": float(plane % config.vector > 0),
            "tasks": workload.batch
            * ceil_div(workload.out_channels, config.block)
            * ceil_div(plane, pixels * config.tiles),
            "reduction": workload.w_shape[1],
            "plane": plane,
            "out_channels": workload.out_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "micro-kernel": replace(config, vectors=1, block=1, tiles=config.vectors * config.tiles),
            "vectors": replace(config, vector=1, tiles=config.vector * config.tiles),
            "threads": replace(config, parallel=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation; the config must be legal.

        For planes whose size is known only when the kernel runs there is a function beside "main" for each kind of
        planes that are smaller than its tile: `lowering.open_sizes.pixels` joins them.
        """
        if not problem.has_open_planes:
            return _schedule(problem, config)
        smaller = [replace(config, vectors=1), replace(config, vectors=1, vector=1)]
        functions = {f"of_{each.vectors}x{each.vector}": _function(problem, each) for each in smaller if each != config}
        return Schedule(tvm.IRModule({"main": _function(problem, config), **functions}))


template = Pointwise()
