"""The gradient of a depthwise convolution by its input on a CPU.

A task is a band of a plane: the rows of the output's gradient that it reads are staged, each row of the result is
computed by phases of the stride, in vectors over neighbouring columns, and then put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import cpu_of

from ...space import ceil_div, ceil_to, named, tile_sizes, wasted
from ...template import Layouts
from ..depthwise import STAGED_BYTES, lanes_for
from ..model import Counts, Read, by_cache, converted, operands, pieces, spilled, threads_of
from ..template import CpuTemplate, Tests, threads_for_work
from . import MAX_UNROLLED, SUM_BYTES, is_parallel, lanes_tried, least_tasks, obstacle

UNROLLED = 128
"""The most multiply-adds of a default configuration that follow each other without a loop."""

MAX_SUMS = 24
"""The most vectors of sums."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    tiles: int
    """The number of tiles of a task, one below the other."""
    rows: int
    """The number of rows of each phase of the stride in a tile."""
    vector: int
    """The number of lanes of a vector."""
    unroll: int
    """The number of loops to unroll: 0 none, 1 the rows and phases of a tile, 2 the rows of taps too, 3 all taps."""
    parallel: bool
    """True to spread the tasks over the threads of the machine."""

    @property
    def band(self) -> int:
        """The number of rows of each phase in a task."""
        return self.tiles * self.rows


def unrolled(workload: ConvWorkload, config: Config) -> int:
    """Return the vector multiply-adds that follow each other without a loop."""
    rows, columns = compute.phases(workload)
    return prod((config.rows * prod(workload.stride), rows.taps, columns.taps)[: config.unroll])


def _with_bands(problem: Problem, rows: int, lanes: int) -> Config:
    """Return the configuration of a tile of `rows` rows of each phase, in vectors of `lanes` lanes."""
    workload = problem.workload
    (row_taps, columns), (height, width) = compute.phases(workload), compute.phase_sizes(workload)
    limit = max(1, STAGED_BYTES // (SUM_BYTES * columns.window(ceil_to(width, lanes))) - row_taps.window(0))
    bands = max(ceil_div(height, limit), min(ceil_div(height, rows), least_tasks(problem, workload.in_channels)))
    config = Config(ceil_div(ceil_div(height, bands), rows), rows, lanes, 3, is_parallel(problem))
    return next(
        each
        for each in (replace(config, unroll=unroll) for unroll in (3, 2, 1, 0))
        if unrolled(workload, each) <= UNROLLED or each.unroll == 0
    )


class InputGradient(CpuTemplate[Config]):
    """The gradient of a depthwise convolution by its input on a CPU, in bands of rows that are staged."""

    DIRECTIONS = ("input_gradient",)
    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(tiles=1, rows=1, vector=4, unroll=0, parallel=False)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload, direction="input_gradient")
        for workload in (
            ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3), stride=2),
            ConvWorkload.depthwise((1, 2, 9, 10), (2, 2, 5, 2), dtype="float16"),
        )
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle(problem)

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        height, _ = compute.phase_sizes(problem.workload)
        return {
            "tiles": tile_sizes(height),
            "rows": tuple(range(1, min(height, 8) + 1)),
            "vector": lanes_tried(target),
            "unroll": (0, 1, 2, 3),
            "parallel": (True, False),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload, native = problem.workload, cpu_of(target).lanes
        height, _ = compute.phase_sizes(workload)

        def tiles_in_planes(config: Config) -> bool:
            return (config.tiles - 1) * config.rows < height

        def registers(config: Config) -> bool:
            sums = config.rows * prod(workload.stride) * config.vector
            return config.rows == 1 or sums <= MAX_SUMS * native

        def straight_line(config: Config) -> bool:
            return config.unroll <= 3 and unrolled(workload, config) <= MAX_UNROLLED

        return named(tiles_in_planes, registers, straight_line)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload, native = problem.workload, cpu_of(target).lanes
        height, width = compute.phase_sizes(workload)

        def little_waste(config: Config) -> bool:
            return wasted(height, config.band) <= 1.2

        def short_vectors_for_short_rows(config: Config) -> bool:
            return config.vector == native or wasted(width, native) > 1.1

        def quick_to_compile(config: Config) -> bool:
            return unrolled(workload, config) <= 4 * UNROLLED

        threads = threads_for_work(workload)
        return named(little_waste, short_vectors_for_short_rows, quick_to_compile, threads)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles, in bands that are not too large to stage and keep threads busy."""
        height, width = compute.phase_sizes(problem.workload)
        lanes = lanes_for(width, cpu_of(target).lanes)
        return (_with_bands(problem, rows, lanes) for rows in range(1, min(height, 8) + 1))

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, cpu = problem.workload, cpu_of(target)
        (rows, columns), (height, width) = compute.phases(workload), compute.phase_sizes(workload)
        planes, bands = workload.batch * workload.in_channels, ceil_div(height, config.band)
        vectors, (sh, sw) = ceil_div(width, config.vector), workload.stride
        steps = planes * bands * config.tiles * vectors * workload.multiplier * rows.taps * columns.taps
        wide = pieces(config.vector, cpu)
        sums = config.rows * sh * sw * wide
        loaded = steps * (sums if config.unroll < 2 else sums / rows.taps + sh * sw * wide)
        window = rows.window(config.band) * columns.window(vectors * config.vector) * workload.multiplier
        results = planes * bands * config.band * sh * vectors * sw
        return Counts(
            tasks=planes * bands if config.parallel else 1,
            threads=threads_of(target, config.parallel),
            loops=int(config.parallel),
            multiplied=steps * sums,
            loaded=loaded,
            chained=steps,
            broadcast=steps * sh * sw,
            split=steps * sums,
            spilled=steps * sums if config.unroll == 0 else spilled(steps, config.rows * sh * sw + 2, cpu),
            issued=results / sh / sw
            + steps * sh * sw * (config.unroll < 3)
            + converted(workload, planes * bands * window, cpu),
            stored=results if sw == 1 else 0,
            copied=planes * bands * window / cpu.unit_lanes,
            moved=0.0 if sw == 1 else float(results * config.vector),
            **by_cache(cpu, *operands(problem), Read(loaded / wide * config.vector * SUM_BYTES, window * SUM_BYTES)),
        )

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload = problem.workload
        (rows, columns), (height, width) = compute.phases(workload), compute.phase_sizes(workload)
        return {
            "tasks": workload.batch * workload.in_channels * ceil_div(height, config.band),
            "sums": config.rows * prod(workload.stride),
            "waste_y": wasted(height, config.band),
            "idle_lanes": wasted(width, config.vector),
            "band_bytes": SUM_BYTES * rows.window(config.band) * columns.window(ceil_to(width, config.vector)),
            "halo": rows.window(config.band) / config.band,
            "code": unrolled(workload, config),
            "taps": prod(workload.kernel),
            "plane": workload.height * workload.width,
            "planes": workload.batch * workload.in_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "micro-kernel": replace(config, rows=1),
            "unrolling": replace(config, unroll=0),
            "threads": replace(config, parallel=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, in bands of rows and whole rows
        workload = compute.with_open_sizes(problem)
        _, width = compute.phase_sizes(workload)
        lanes, tile_j = config.vector, ceil_to(width, config.vector)
        sch = Schedule(te.create_prim_func(compute.input_gradient(workload, (config.band, tile_j))))
        window, sums, output = (sch.get_sblock(name) for name in ("window", "sums", "output"))

        # Step 1. A task is a band of a plane, some rows of each phase at a time
        n, c, h, w = sch.get_loops(output)
        band, tile, i, p = sch.split(h, [None, config.tiles, config.rows, workload.stride[0]])
        row, j, o = sch.split(w, [None, tile_j, workload.stride[1]])  # whole vectors: only what is stored is tested
        sch.reorder(n, c, band, tile, row, i, p, j, o)
        task = sch.fuse(n, c, band)
        if config.parallel:
            sch.parallel(task)
        sch.compute_at(sums, tile, preserve_unit_loops=True)
        sch.compute_at(window, task, preserve_unit_loops=True)

        # Step 2. All phases of a vector in registers, tap by tap, as far as the code stays short
        sch.transform_layout(sums, ("write", 0), lambda n, c, y, x, i, p, j, o: (n, c, y, x, i, p, o, j))
        i, p, j, o, q, r, s = sch.get_loops(sums)[-7:]
        vectors, lane = sch.split(j, [None, lanes])
        sch.reorder(vectors, q, s, r, i, p, o, lane)
        for loops in ((i, p, o), (r,), (s,))[: config.unroll]:
            for loop in loops:
                sch.unroll(loop)
        sch.vectorize(lane)
        zeros = sch.decompose_reduction(sums, q)
        *_, i, p, o, lane = sch.get_loops(zeros)
        for loop in (i, p, o) if config.unroll else ():
            sch.unroll(loop)
        sch.vectorize(lane)

        # Step 3. Put the phases of a row together: without tests, so that LLVM makes vectors of it
        *_, j, o = sch.get_loops(output)
        sch.unroll(o)
        sch.annotate(j, "pragma_loop_partition_hint", True)
        return sch


template = InputGradient()
