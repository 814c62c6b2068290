"""Depthwise convolution on CUDA: a block computes one tile of one or several output planes.

The schedule of the TVM depthwise tutorial (blocking, thread and vthread counts, shared memory, fused epilogue), written
for s_tir, with padding resolved while the input tile is staged and several small planes in one block.

On an H100 in float32 it takes, tuned, as long as a copy of the same bytes for large planes with 3x3 kernels, up to 1.25
times as long for most others, and 1.45 times for the largest kernels (benchmarks/depthwise-h100.json).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, prod
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, ceil_to, named, upto, wasted, with_default
from ...template import Layouts
from ..model import Counts
from ..template import GpuTemplate, Tests
from .candidates import OUTPUTS, ROLLED, UNROLLED, candidates
from .counts import counts
from .tiles import LEAST, MAX_WINDOW, Config, blocks, registers, shared_bytes, whole_planes, window_elements


class Depthwise(GpuTemplate[Config]):
    """Depthwise convolution in NCHW."""

    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = LEAST
    examples = (
        Problem(ConvWorkload.depthwise((2, 6, 11, 13), (6, 1, 3, 3), shift=True, residual=True, activation="relu")),
        Problem(ConvWorkload.depthwise((1, 5, 14, 15), (5, 3, 3, 3), stride=2, padding=(3, 0, 1, 2))),
        Problem(ConvWorkload.depthwise((2, 4, 1, 300), (4, 1, 1, 4), padding=(0, 3, 0, 0), dtype="float16")),
        Problem(
            ConvWorkload.depthwise((1, 4, 19, 22), (4, 1, 3, 3), dilation=(1, 3), dtype="bfloat16"),
            open_sizes=OPEN_SIZES,
        ),
    )
    MAX_UNROLLED = 4096

    WORTH_A_TRIAL = 1.3
    """The fastest measured configuration within it took 1.003 times the shortest time, in the mean of 116 problems."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take depthwise convolutions."""
        return None if problem.is_depthwise else "is for depthwise convolutions"

    def registers(self, problem: Problem, config: Config) -> int:
        return ceil_to(registers(problem.workload, config), 8)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
        return int(target.attrs["max_shared_memory_per_block"])

    def threads_z(self, config: Config) -> int:
        return config.threads_z

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def instructions(self, problem: Problem, config: Config) -> float:
        """Return the multiply-adds of the unrolled loops over taps; infinity for more loops than there are."""
        unrolled = (1, problem.workload.kernel[1], prod(problem.workload.kernel))
        return config.outputs * unrolled[config.unroll] if config.unroll < len(unrolled) else inf

    def rules(self, problem: Problem) -> Tests[Config]:
        workload, any_width = problem.workload, "width" in problem.open_sizes
        height, width = workload.output_size

        def whole_channels(config: Config) -> bool:
            return config.planes in whole_planes(workload, config.planes)

        def whole_vectors(config: Config) -> bool:
            of_row = config.flat or config.thread_x % config.store == 0
            whole = config.store == 1 if any_width else width % config.store == 0
            return config.store in (1, 2, 4, 8) and of_row and whole and config.store * workload.itemsize <= 16

        def whole_loads(config: Config) -> bool:
            whole = config.load == 1 if any_width else workload.width % config.load == 0
            return config.load in (1, 2, 4, 8) and whole and config.load * workload.itemsize <= 16

        def aligned_loads(config: Config) -> bool:
            """Return whether staged elements begin at a whole load, whatever thread or block stages them."""
            staged = config.block_x if config.shared_input else config.thread_x if config.unroll == 2 else 0
            return config.load == 1 or config.flat or (staged > 0 and staged * workload.stride[1] % config.load == 0)

        def whole_siblings(config: Config) -> bool:
            return config.siblings in (1, workload.multiplier) and config.planes % config.siblings == 0

        def whole_planes_in_registers(config: Config) -> bool:
            """Return whether flat planes are in registers in one piece.

            With vthreads TVM's kernels are wrong on a GPU, though not their serial twins.
            """
            whole = config.block_y >= height and config.block_x >= width and not problem.has_open_planes
            window = config.unroll == 2 and not config.shared_input
            return not config.flat or (whole and window and config.vthreads_y == config.vthreads_x == 1)

        def waste(config: Config) -> bool:
            return problem.has_open_planes or wasted(height, config.block_y) * wasted(width, config.block_x) <= 2

        return named(
            whole_channels, whole_vectors, whole_loads, aligned_loads, whole_siblings, whole_planes_in_registers, waste
        )

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        """Return the tests that a configuration must pass: outputs and window bound registers, however many threads."""
        workload = problem.workload

        def registers(config: Config) -> bool:
            return config.outputs <= 64 and window_elements(workload, config) <= MAX_WINDOW

        return {**super().constraints(problem, target), **named(registers)}

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterable[Config]:
        """Return configurations that unroll the loops over taps, or, if none of these is legal, some that do not."""
        unrolled = dict.fromkeys(candidates(problem, UNROLLED))
        is_any = any(True for _ in self.legal(unrolled, problem, target))
        return unrolled if is_any else dict.fromkeys(candidates(problem, ROLLED))

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload, (height, width) = problem.workload, problem.workload.output_size
        wide = (4, 8) if height == 1 else ()  # for planes of one row, of which a thread has several vectors

        rows, columns = upto(height, 1, 2, 3, 4, 6, 7, 8), upto(width, 1, 2, 4, 7, 8)
        whole_height = upto(64, *(ceil_div(height, n) for n in rows))
        whole_width = upto(64, *(ceil_div(width, n) for n in columns))
        # An input that the default stages may be staged, or read through registers.
        staged = default.shared_input
        knobs: dict[str, Iterable[Any]] = {
            "planes": {*whole_planes(workload, 64)},
            "threads_y": upto(2 * height - 1, 1, 2, 4, 8, 16) | whole_height,
            "threads_x": upto(2 * width - 1, 1, 4, 8, 16, 32, 56) | whole_width,
            "vthreads_y": upto(height, 1, 2) if staged else {1},
            "vthreads_x": upto(width, 1, 2, *wide) if staged or wide else {1},
            "thread_y": rows,
            "thread_x": columns,
            "store": upto(16 // workload.itemsize, 1, 2, 4, 8),
            "unroll": {default.unroll},
            "shared_input": {staged, False},
            "shared_filter": {False, True},
            "load": upto(16 // workload.itemsize, 1, 2, 4, 8),
            "siblings": {1, workload.multiplier},
            "flat": {False, True},
        }
        return with_default(knobs, default)

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload, (height, width) = problem.workload, problem.workload.output_size

        def widest_stores(config: Config) -> bool:
            return config.flat or config.thread_x == config.store or width % config.thread_x != 0

        def neighbours_read_together(config: Config) -> bool:
            vector_limit = 16 // workload.itemsize if height > 1 else 8
            return config.flat or (config.thread_x <= vector_limit and config.threads_x > 1)

        def whole_warps(config: Config) -> bool:
            return WARP <= config.threads <= 256 and wasted(config.threads, WARP) <= 1.35

        def little_waste(config: Config) -> bool:
            return wasted(height, config.block_y) <= 1.2 and wasted(width, config.block_x) <= 1.2

        def few_registers(config: Config) -> bool:
            return config.outputs <= OUTPUTS

        def one_stage(config: Config) -> bool:
            return not (config.shared_input and config.shared_filter)

        def one_way_of_striding(config: Config) -> bool:
            return config.vthreads_y * config.vthreads_x <= (2 if height > 1 else 8)

        return named(
            widest_stores,
            neighbours_read_together,
            whole_warps,
            little_waste,
            few_registers,
            one_stage,
            one_way_of_striding,
        )

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        return counts(problem.workload, config, target, self.resident_blocks(problem, config, gpu_of(target)))

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload, (height, width) = problem.workload, problem.workload.output_size
        taps, vthreads = prod(workload.kernel), config.vthreads_y * config.vthreads_x
        elements_read = prod(workload.read_by((config.thread_y, config.thread_x))) * vthreads
        staged = prod(workload.read_by((config.block_y, config.block_x)))
        run = min(width, config.threads_x * config.thread_x)
        return {
            "idle_lanes": ceil_to(config.threads, WARP) / config.threads,
            "outputs": config.outputs,
            "vthreads": vthreads,
            "block_x": config.block_x,
            "block_y": config.block_y,
            "waste_x": wasted(width, config.block_x),
            "waste_y": wasted(height, config.block_y),
            "waste": wasted(width, config.block_x) * wasted(height, config.block_y),
            "shared_bytes": shared_bytes(workload, config),
            "registers": registers(workload, config),
            "macs_per_load": config.outputs * taps / elements_read,
            "halo": staged / (config.block_y * config.block_x),
            "run_bytes": run * workload.itemsize,
            "rows_of_warp": max(1.0, WARP / config.threads_x),
            "taps": taps,
            "plane": height * width,
            "planes": workload.batch * workload.out_channels,
        }

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        """Return features for a cost model besides the knobs, among them how blocks share the GPU."""
        gpu, grid = gpu_of(target), blocks(problem.workload, config)
        warps, resident = ceil_div(config.threads, WARP), self.resident_blocks(problem, config, gpu)
        waves = grid / (gpu.multiprocessors * resident)
        return {
            **super().features(problem, config, target),
            "warps_per_sm": min(warps * resident, grid * warps / gpu.multiprocessors),
            "waves": waves,
            "last_wave": ceil_div(grid, gpu.multiprocessors * resident) / waves,
            "blocks_per_sm": ceil_div(grid, gpu.multiprocessors) * gpu.multiprocessors / grid,
            "outputs_per_sm": config.outputs * config.threads * min(resident, grid / gpu.multiprocessors),
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        tile = replace(config, flat=False, store=1, load=1) if config.flat else config  # no vectors of whole planes
        return {
            "vector loads": replace(config, store=1, load=1),
            "unrolling": replace(tile, unroll=0, shared_input=True),
            "shared filter": replace(config, shared_filter=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation; the config must be legal."""
        # Step 0. The computation, rounded up to whole tiles
        tile = (config.block_y, config.block_x)
        lanes = 1 if config.flat else config.load
        sch = Schedule(te.create_prim_func(compute.depthwise(compute.with_open_sizes(problem), tile, lanes)))
        pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "depthwise", "output"))
        # Of an open plane TVM cannot tell how much of the residual, the last operand, a tile reads.
        end = len(sch.get(output).reads) - (problem.has_open_planes and problem.workload.epilogue.residual)
        vectors = [sch.cache_read(output, operand, "local") for operand in range(1, end)]
        copies = (sch.cache_read(pad, 0, "shared"), sch.cache_write(output, 0, "shared")) if config.flat else None
        store = sch.cache_write(output, 0, "local") if config.store > 1 and not config.flat else output

        # Step 1. Tile the output: blocks, vthreads (strided), threads, then what a thread owns
        n, k, y, x = sch.get_loops(store)
        bk, tz, ki = sch.split(k, [None, config.threads_z, config.siblings])
        by, vy, ty, yi = sch.split(y, [None, config.vthreads_y, config.threads_y, config.thread_y])
        bx, vx, tx, xi = sch.split(x, [None, config.vthreads_x, config.threads_x, config.thread_x])
        sch.reorder(n, bk, by, bx, vy, vx, tz, ty, tx, ki, yi, xi)
        # Only blockIdx.x is wide enough for every batch and channel count. A number of tiles that is known only when
        # the kernel runs has a separate axis: TVM cannot tell what a block stages where its indices come from a
        # division.
        axes = (sch.fuse(n, bk), by, bx) if problem.has_open_planes else (sch.fuse(n, bk, by, bx),)
        for axis, name in zip(axes, ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
            sch.bind(axis, name)
        block = axes[-1]
        sch.bind(vy, "vthread.y")
        sch.bind(vx, "vthread.x")

        # Step 2. Accumulate in registers; the epilogue follows in the same thread, and stores vectors
        if store != output:
            xi, vector = sch.split(xi, [None, config.store])
            sch.compute_at(output, xi, preserve_unit_loops=True)
            sch.unroll(sch.get_loops(output)[-1])
            sch.vectorize(vector)
        for loop in (ki, yi, xi):
            sch.unroll(loop)
        sch.compute_at(accumulate, tx, preserve_unit_loops=True)
        sch.set_scope(accumulate, 0, "local")

        # The epilogue's operands are read first: the end of the kernel is too late to begin waiting for them.
        for vector in vectors:
            sch.compute_at(vector, tx, preserve_unit_loops=True, index=0)

        # Step 3. Stage the input, with the padding resolved on the way
        if config.shared_input or config.unroll == 2:  # registers have no addresses: only unrolled taps can read them
            sch.compute_at(pad, block if config.shared_input else tx, preserve_unit_loops=True)
            sch.set_scope(pad, 0, "shared" if config.shared_input else "local")
            plane, row, column, *lane = sch.get_loops(pad)[-4 if lanes > 1 else -3 :]
            if config.shared_input:
                rows = sch.fuse(plane, row)
                steps_y, wz, wy = sch.split(rows, [None, config.threads_z, config.threads_y])
                steps_x, wx = sch.split(column, [None, config.threads_x])
                sch.reorder(steps_y, steps_x, wz, wy, wx)
                _bind_threads(sch, config, wz, wy, wx)
            else:
                for loop in (plane, row, column):
                    sch.unroll(loop)
            for loop in lane:
                sch.vectorize(loop)
        else:
            sch.compute_inline(pad)
        if copies is not None:
            copy_in, copy_out = copies
            sch.compute_at(copy_in, block, preserve_unit_loops=True)
            sch.reverse_compute_at(copy_out, block, preserve_unit_loops=True)
            _spread_over_threads(sch, copy_in, config, config.load)
            _spread_over_threads(sch, copy_out, config, config.store)

        # Step 4. Stage the filter
        if config.shared_filter:
            taps = sch.cache_read(accumulate, 1, "shared")
            sch.compute_at(taps, block, preserve_unit_loops=True)
            _spread_over_threads(sch, taps, config, 1)

        _bind_threads(sch, config, tz, ty, tx)

        # Step 5. Taps outside, the thread's outputs inside, and the loops over taps that `unroll` names unrolled
        ni, ki, yi, xi, r, s = sch.get_loops(accumulate)[-6:]
        sch.reorder(ni, r, s, ki, yi, xi)
        for loop in (ki, yi, xi, *((), (s,), (r, s))[config.unroll]):
            sch.unroll(loop)
        sch.decompose_reduction(accumulate, r)
        return sch


def _spread_over_threads(sch: Schedule, copy: SBlockRV, config: Config, vector: int) -> None:
    """Distribute the vectors of a block's copy over its threads, neighbouring vectors to neighbouring threads."""
    *outer, column = sch.get_loops(copy)[-4:]
    column, lane = sch.split(column, [None, vector])
    elements = sch.fuse(*outer, column)
    _, z, y, x = sch.split(elements, [None, config.threads_z, config.threads_y, config.threads_x])
    _bind_threads(sch, config, z, y, x)
    sch.vectorize(lane)


def _bind_threads(sch: Schedule, config: Config, z: LoopRV, y: LoopRV, x: LoopRV) -> None:
    """Bind three loops to threads; to one dimension where planes are flat, so that TVM sees they are contiguous."""
    loops = (sch.fuse(z, y, x),) if config.flat else (x, y, z)
    for loop, thread in zip(loops, ("threadIdx.x", "threadIdx.y", "threadIdx.z"), strict=False):
        sch.bind(loop, thread)


template = Depthwise()
