"""The gradient of a depthwise convolution by its weight on a CPU.

A task is a channel, or a part of the rows of its planes: vectors run over neighbouring columns, and the sums of all
taps, or of some rows of them, stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import cpu_of

from ...space import ceil_div, named, tile_sizes, wasted
from ...template import Layouts
from ..depthwise import STAGED_BYTES, lanes_for
from ..model import Counts, Read, by_cache, converted, operands, pieces, spilled, threads_of
from ..template import CpuTemplate, Tests, threads_for_work
from . import MAX_UNROLLED, SUM_BYTES, is_parallel, lanes_tried, least_tasks, obstacle

BESIDE = 8
"""The instructions of a step beside its sums: of its loop, of addresses and of masks."""

BUSY = 2
"""The rows of a step of a default configuration, by which a vector of x is read for several taps."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    parts: int
    """The number of tasks of a channel."""
    bands: int
    """The number of bands of a task, one staged after the other."""
    rows: int
    """The number of rows of a step, for each of which a vector of x is read once."""
    block_r: int
    """The number of rows of the kernel whose sums are made together."""
    vector: int
    """The number of lanes of a vector."""
    parallel: bool
    """True to spread the tasks over the threads of the machine."""

    def shape(self, workload: ConvWorkload) -> compute.Bands:
        """Return the division of a plane's rows into parts, bands, and the steps of each band."""
        steps = ceil_div(workload.output_size[0], self.rows)
        return compute.Bands(self.parts, self.bands, ceil_div(steps, self.parts * self.bands), self.rows)


class WeightGradient(CpuTemplate[Config]):
    """The gradient of a depthwise convolution by its weight on a CPU, in bands of rows that are staged."""

    DIRECTIONS = ("weight_gradient",)
    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(parts=1, bands=1, rows=1, block_r=1, vector=4, parallel=False)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload, direction="weight_gradient")
        for workload in (
            ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3), stride=2),
            ConvWorkload.depthwise((1, 2, 9, 10), (2, 2, 5, 2), dtype="float16"),
        )
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle(problem)

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        height, _ = problem.workload.output_size
        return {
            "parts": tile_sizes(height),
            "bands": tile_sizes(height),
            "rows": tuple(range(1, min(height, 4) + 1)),
            "block_r": tuple(range(1, problem.workload.kernel[0] + 1)),
            "vector": lanes_tried(target),
            "parallel": (True, False),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        (height, _), (kernel_y, kernel_x) = problem.workload.output_size, problem.workload.kernel

        def bands_in_planes(config: Config) -> bool:
            return config.parts * config.bands <= ceil_div(height, config.rows)

        def taps_in_kernel(config: Config) -> bool:
            return config.block_r <= kernel_y

        def registers(config: Config) -> bool:
            sums = config.block_r * kernel_x * ceil_div(config.vector, cpu_of(target).lanes)
            return config.block_r == 1 or sums <= cpu_of(target).registers

        def straight_line(config: Config) -> bool:
            return config.block_r * kernel_x * config.rows <= max(MAX_UNROLLED, BUSY * kernel_x)

        return named(bands_in_planes, taps_in_kernel, registers, straight_line)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload, native = problem.workload, cpu_of(target).lanes
        (height, width), kernel_y = workload.output_size, workload.kernel[0]

        def little_waste(config: Config) -> bool:
            return wasted(height, prod(config.shape(workload))) <= 1.2 and wasted(kernel_y, config.block_r) <= 1.2

        def short_vectors_for_short_rows(config: Config) -> bool:
            return config.vector == native or wasted(width, native) > 1.1

        return named(little_waste, short_vectors_for_short_rows, threads_for_work(workload))

    def candidates(self, problem: Problem, target: tvm.target.Target) -> tuple[Config]:
        """Return bands that are not too large to stage, in parts that keep threads busy.

        The rows of a step and of taps follow rules: some steps of more sums take LLVM's registers, at up to six times
        the time, and no count tells which.
        """
        workload = problem.workload
        height, width = workload.output_size
        rows = min(BUSY, height)
        row_bytes = SUM_BYTES * (workload.read_by((1, width))[1] * workload.stride[0] + width)
        limit = max(2, (STAGED_BYTES - row_bytes * workload.window[0]) // (row_bytes * rows))
        steps = ceil_div(height, rows)
        parts = min(steps, least_tasks(problem, workload.out_channels))
        config = Config(
            parts=parts,
            bands=ceil_div(ceil_div(steps, parts), limit),
            rows=rows,
            block_r=_rows_of_taps(workload, target),
            vector=lanes_for(width, cpu_of(target).lanes),
            parallel=is_parallel(problem),
        )
        return (config,)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, cpu = problem.workload, cpu_of(target)
        (_, width), (kernel_y, kernel_x) = workload.output_size, workload.kernel
        shape, vectors, wide = config.shape(workload), ceil_div(width, config.vector), pieces(config.vector, cpu)
        rows = shape.steps * shape.rows
        bands = workload.batch * workload.out_channels * config.parts * config.bands
        steps = bands * shape.steps * vectors * ceil_div(kernel_y, config.block_r)
        taps = config.block_r * kernel_x
        loaded = kernel_x * (workload.read_by((config.rows, 1))[0] - kernel_y + config.block_r) + config.rows
        band_rows, columns = workload.read_by((rows, vectors * config.vector))
        staged = float(bands * band_rows * columns)
        if workload.dtype != "float32" or width % config.vector or workload.output_size[0] % prod(shape):
            staged += bands * rows * vectors * config.vector
        sw = workload.stride[1]
        return Counts(
            tasks=workload.out_channels * config.parts if config.parallel else 1,
            threads=threads_of(target, config.parallel),
            loops=int(config.parallel),
            multiplied=steps * taps * config.rows * wide,
            loaded=steps * loaded * wide,
            chained=steps * config.rows,
            split=steps * loaded * wide,
            spilled=spilled(steps, taps + config.rows + 1, cpu),
            issued=bands * taps + BESIDE * steps + converted(workload, staged, cpu),
            copied=0.0 if sw > 1 else staged / cpu.unit_lanes,
            moved=staged * (sw > 1) + workload.out_channels * config.parts * prod(workload.kernel) * config.vector,
            **by_cache(
                cpu,
                *operands(problem),
                Read(steps * loaded * config.vector * SUM_BYTES, band_rows * columns * SUM_BYTES),
            ),
        )

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload = problem.workload
        (height, width), shape = workload.output_size, config.shape(workload)
        rows, columns = workload.read_by((shape.steps * shape.rows, width))
        return {
            "tasks": workload.out_channels * config.parts,
            "sums": config.block_r * workload.kernel[1],
            "waste_y": wasted(height, prod(shape)),
            "waste_r": wasted(workload.kernel[0], config.block_r),
            "idle_lanes": wasted(width, config.vector),
            "band_bytes": SUM_BYTES * (rows * columns + shape.steps * shape.rows * width),
            "code": config.rows * config.block_r * workload.kernel[1],
            "taps": prod(workload.kernel),
            "plane": height * width,
            "planes": workload.batch * workload.out_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "several rows": replace(config, rows=1),
            "several rows of taps": replace(config, block_r=1),
            "threads": replace(config, parallel=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, in bands of rows
        workload, shape, lanes = compute.with_open_sizes(problem), config.shape(problem.workload), config.vector
        (height, width), sw = workload.output_size, workload.stride[1]
        sch = Schedule(te.create_prim_func(compute.weight_gradient_in_rows(workload, shape, config.block_r, lanes)))
        names = ("pad", "grad", "sums", "parts", "total", "output")
        pad, grad, sums, parts, total, output = (sch.get_sblock(name) for name in names)

        # Step 1. A task is a part of all planes of a channel
        k, part, *_ = sch.get_loops(parts)
        task = sch.fuse(k, part)
        if config.parallel:
            sch.parallel(task)
        for fewer in reversed(compute.folds(lanes)):
            folded = sch.get_sblock(f"folded_{fewer}")
            sch.compute_at(folded, task, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(folded)[-1])
        sch.compute_at(sums, task, preserve_unit_loops=True)
        ro, r, s, lane, n, band, step, vector, row = sch.get_loops(sums)[-9:]
        sch.reorder(n, band, ro, step, vector, s, r, row, lane)

        # Step 2. Stage the band of an image; of dy where it is not whole vectors of float32
        sch.compute_at(pad, band, preserve_unit_loops=True)
        if sw > 1:
            _by_phases(sch, pad, sw)
        if workload.dtype != "float32" or width % lanes or height % prod(shape):
            sch.compute_at(grad, band, preserve_unit_loops=True)
        else:
            sch.compute_inline(grad)

        # Step 3. The sums of all taps, or of some rows of them, in registers
        for loop in (s, r, row):
            sch.unroll(loop)
        sch.vectorize(lane)
        zeros = sch.decompose_reduction(sums, n)
        sch.vectorize(sch.get_loops(zeros)[-1])

        # Step 4. Add the parts up, and store
        *_, c, m, r, s, part = sch.get_loops(total)
        sch.reorder(c, m, part, r, s)
        sch.decompose_reduction(total, part)
        sch.reverse_compute_at(output, m)
        return sch


def _rows_of_taps(workload: ConvWorkload, target: tvm.target.Target) -> int:
    """Return the rows of the kernel whose sums, in registers, are made together."""
    rows, columns = workload.kernel
    limit = max(1, 25 * cpu_of(target).registers // (32 * columns))
    # With few sums there are few vectors of x that several taps share.
    return min(range(1, min(rows, limit) + 1), key=lambda block: wasted(rows, block) * (1 + 0.4 / block))


def _by_phases(sch: Schedule, pad: SBlockRV, stride: int) -> None:
    """Lay out the columns of a staged band by the phases of the stride, so that a tap reads neighbouring elements."""
    band = sch.get_loops(pad)[-4]
    if sch.can_decompose_padding(pad, band):  # copies without tests, so that LLVM makes vectors of each phase
        zeros = sch.decompose_padding(pad, band)
        columns, phase = sch.split(sch.get_loops(zeros)[-1], [None, stride])
        sch.reorder(phase, columns)
    _, phase = sch.split(sch.get_loops(pad)[-1], [None, stride])
    sch.unroll(phase)
    sch.transform_layout(pad, ("write", 0), lambda n, c, h, w: (n, c, h, w % stride, w // stride))


template = WeightGradient()
