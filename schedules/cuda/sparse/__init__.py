"""Convolution by a sparse weight on CUDA: the template in which every weight becomes an immediate, or nothing.

A block stages the input of a tile of pixels in shared memory, chunk of channels by chunk; neighbouring threads compute
neighbouring pixels, each of them one block of output channels (algorithm 1 of the sparse code-generation paper). The
loops marked `UNROLLED` are those that `tvmconv.lowering.folding` unrolls when it knows the weight: each block of output
channels becomes separate code, and the blocks of pixels that run the same code are neighbours in the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.compute.annotations import COPIED, UNROLLED
from tvmconv.compute.gradients.weight_planes import BANKS
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu, gpu_of

from ...space import Space, ceil_div, ceil_to, divisors, named, tile_sizes, wasted
from ...template import Fused, Layouts
from ..machine import MAX_REGISTERS, REGISTERS
from ..template import GpuTemplate, Tests
from .model import clocks, instructions, loads, resident_blocks
from .tiles import Config, blocks, copies, grid_of_tiles, pitch, registers, shared_bytes, staged_elements, window

MAX_INSTRUCTIONS = 16384
"""The largest number of instructions of a block of output channels.

Compilers take longer over one block of twice this number than over two such blocks.
"""

MAX_TOTAL_INSTRUCTIONS = 48000
"""The largest number of instructions of all blocks, or two for each product.

More take longer to compile than a configuration is worth.
"""

FLATTERED = 1.14
"""The estimate of a dense kernel divided by that of a sparse one, as a multiple of the ratio of their times: the
geometric mean over 18 operators on an H100, those of `benchmarks/sparse-h100-batch-1.json` and `-64.json`."""


class Sparse(GpuTemplate[Config]):
    """Convolution by a weight that is compiled in, on CUDA cores."""

    LAYOUTS: Layouts | Fused = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, 1, 1, 1, num_stages=1)
    examples = (
        Problem(
            ConvWorkload.conv2d((1, 4, 8, 10), (7, 4, 3, 3), scale=True, residual=True, activation="relu"), sparsity=0.7
        ),
        Problem(ConvWorkload.depthwise((1, 6, 13, 14), (6, 2, 3, 3), stride=(2, 1), dtype="float16"), sparsity=0.5),
        Problem(ConvWorkload.conv2d((2, 8, 7, 9), (6, 4, 3, 3), groups=2), sparsity=0.8, open_sizes=OPEN_SIZES),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take weights that are compiled in."""
        return None if problem.sparsity is not None else "is for weights that are compiled in"

    def registers(self, problem: Problem, config: Config) -> int:
        return registers(problem.workload, config)

    def max_registers(self, problem: Problem, config: Config) -> int:
        """Return the most registers of a thread with which a block's warps have room."""
        return min(MAX_REGISTERS, REGISTERS // ceil_to(config.threads, WARP))

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
        return int(target.attrs["max_shared_memory_per_block"])

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def blocks_y(self, problem: Problem, config: Config) -> int:
        """Return the blocks of output channels."""
        return ceil_div(problem.workload.out_channels, config.block_m)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def whole_chunks(config: Config) -> bool:
            return workload.in_channels % config.block_c == 0

        def chunks_for_stages(config: Config) -> bool:
            return config.num_stages * config.block_c <= workload.in_channels

        def copied_behind(config: Config) -> bool:
            return config.num_stages == 1 or copies(workload)

        def whole_blocks(config: Config) -> bool:
            """Return whether a block's tiles end with a row of tiles, or its rows of tiles with an image.

            Other tiles are not numbered by loops. With an open batch all tiles of a block are of one image.
            """
            left = config.tiles
            images, down, across = grid_of_tiles(workload, config)
            for extent in (across, down, 1 if problem.open_sizes else images):
                common = gcd(left, extent)
                left //= common
                if common < extent:
                    break
            return left == 1

        def whole_images(config: Config) -> bool:
            return config.images == 1 if problem.open_sizes else workload.batch % config.images == 0

        def waste(config: Config) -> bool:
            # A warp has all of its threads in any case, and they stage a small plane's window together.
            return prod(map(wasted, workload.output_size, config.tile)) <= 2 or prod(config.tile) <= WARP

        return named(whole_chunks, chunks_for_stages, copied_behind, whole_blocks, whole_images, waste)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> list[Config]:
        """Return the configurations that are worth a trial and legal on a target; all of them where there are none."""
        every = [Config(*values) for values in product(*self.knobs(problem, self.LEAST).values())]
        tests = (*self.heuristics(problem).values(), *self.constraints(problem, target).values())
        return [config for config in every if all(holds(config) for holds in tests)] or every

    @lru_cache(maxsize=64)  # noqa: B019 (the model tries thousands, and there is one template)
    def default_config(self, problem: Problem, target: tvm.target.Target) -> Config:
        """Return the configuration that should be the fastest for a share of non-zeros; it is cached."""
        return super().default_config(problem, target)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload = problem.workload
        height, width = workload.output_size

        def few_tiles(extent: int, least: int, limit: int) -> tuple[int, ...]:
            return tuple(size for size in tile_sizes(extent) if least <= size <= limit and wasted(extent, size) <= 1.15)

        return {
            "block_m": tuple(
                sorted({ceil_div(workload.out_channels, parts) for parts in (1, 2, 3, 4, 5, 8, 10, 16, 32, 64)})
            ),
            "images": divisors(workload.batch, 8) if height * width <= 256 and not problem.open_sizes else (1,),
            "threads_y": few_tiles(height, 1, 32),
            "threads_x": few_tiles(width, min(width, 8), 256) + ((WARP,) if height * width < WARP else ()),
            "thread_y": (1, 2, 4),
            "thread_x": (1,),
            "block_c": divisors(workload.in_channels, 32),
            "num_stages": (1, 2, 3, 4),
            "tiles": (1,),
        }

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload, density = problem.workload, problem.density

        def whole_warps(config: Config) -> bool:
            return WARP <= config.threads <= 1024 and wasted(config.threads, WARP) <= 1.15

        def little_waste(config: Config) -> bool:
            return prod(map(wasted, workload.output_size, config.tile)) <= 1.15

        def little_code(config: Config) -> bool:
            body = instructions(workload, config, density)
            products = density * prod(workload.w_shape)
            limit = max(MAX_TOTAL_INSTRUCTIONS, 2 * products)
            return body <= MAX_INSTRUCTIONS and ceil_div(workload.out_channels, config.block_m) * body <= limit

        return named(whole_warps, little_waste, little_code)

    def space(self, problem: Problem, target: tvm.target.Target) -> Space[Config]:
        """Return the configurations that are worth a trial: by heuristics, not by the estimate."""
        default = self.default_config(problem, target)
        constraints, knobs = self.constraints(problem, target), self.knobs(problem, default)
        return Space(default, self.LEAST, knobs, constraints, self.heuristics(problem))

    def resident_blocks(self, problem: Problem, config: Config, gpu: Gpu) -> int:
        """Return the number of blocks that a multiprocessor has room for, by the function that the model uses."""
        return resident_blocks(problem.workload, config, gpu)

    def estimate(self, problem: Problem, config: Config, target: tvm.target.Target) -> float:
        """Return the clocks that the busiest multiprocessor should take, or the memory."""
        return clocks(problem.workload, config, gpu_of(target), problem.density)

    def pays(
        self,
        problem: Problem,
        config: Config,
        target: tvm.target.Target,
        weight_bytes: int,
        dense_cycles: Callable[[], float],
    ) -> bool:
        """Return whether the kernel should be faster than the dense one, by the models of both.

        In a network whose weights are more than the L2 cache has room for, code has left it before the kernel runs
        again; dense weights have too, but are read ahead.
        """
        gpu = gpu_of(target)
        evicted = weight_bytes > gpu.l2_room
        return FLATTERED * clocks(problem.workload, config, gpu, problem.density, evicted) < dense_cycles()

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload, density = problem.workload, problem.density
        return {
            "instructions": instructions(workload, config, density),
            "loads": loads(workload, config, density),
            "staged_elements": staged_elements(workload, config),
            "bodies": self.blocks_y(problem, config),
            "outputs": config.outputs,
            "chunks": workload.in_channels // config.block_c,
            "shared_bytes": shared_bytes(workload, config),
            "row_bytes": config.tile[1] * workload.itemsize,
            "halo": prod(window(workload, config)) / prod(config.tile),
            "waste": prod(map(wasted, workload.output_size, config.tile)),
        }

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        """Return features for a cost model besides the knobs, with how blocks share the GPU."""
        gpu = gpu_of(target)
        grid = self.blocks(problem, config) * self.blocks_y(problem, config)
        share, resident = ceil_div(grid, gpu.multiprocessors), self.resident_blocks(problem, config, gpu)
        return {
            **super().features(problem, config, target),
            "warps": min(share, resident) * ceil_div(config.threads, WARP),
            "resident": resident,
            "balance": share * gpu.multiprocessors / grid,
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        return {
            "prefetch": replace(config, num_stages=1),
            "shared inputs": replace(config, block_m=1),
            "rows": replace(config, thread_y=1, threads_y=config.threads_y * config.thread_y),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the workload's computation with all output channels in a thread; the config must be legal."""
        workload = compute.with_open_sizes(problem)
        # Step 0. The computation, rounded up to whole tiles
        sch = Schedule(te.create_prim_func(compute.sparse(workload, config.tile)))
        pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "sparse", "output"))

        # Step 1. Tile the output: blocks, threads, then what a thread owns
        n, k, y, x = sch.get_loops(output)
        bn, tn = sch.split(n, [None, config.images])
        by, ty, yi = sch.split(y, [None, config.threads_y, config.thread_y])
        bx, tx, xi = sch.split(x, [None, config.threads_x, config.thread_x])
        sch.reorder(bn, by, bx, tn, ty, tx, yi, xi, k)
        block, _ = sch.split(sch.fuse(bn, by, bx), [None, config.tiles])
        sch.bind(block, "blockIdx.x")
        thread = sch.fuse(tn, ty, tx)
        sch.bind(thread, "threadIdx.x")
        _unroll(sch, k=[k], other=[yi, xi])

        # Step 2. Accumulate in registers, chunk by chunk of the input channels
        sch.compute_at(accumulate, thread, preserve_unit_loops=True)
        sch.set_scope(accumulate, 0, "local")
        ni, k, yi, xi, c, r, s = sch.get_loops(accumulate)[-7:]
        co, ci = sch.split(c, [None, config.block_c])
        sch.reorder(co, ci, r, s, ni, yi, xi, k)

        # Step 3. Stage each chunk in shared memory, where pixels find their padding
        sch.set_scope(pad, 0, "shared")
        sch.compute_at(pad, co, preserve_unit_loops=True)
        images, channels, rows, columns = sch.get_loops(pad)[-4:]
        sch.storage_align(pad, 0, -2, BANKS, pitch(workload, config) % BANKS)
        sch.reorder(channels, images, rows, columns)
        steps, lane = sch.split(sch.fuse(images, rows, columns), [None, config.threads])
        sch.bind(lane, "threadIdx.x")
        if copies(workload):
            sch.annotate(channels, COPIED, config.num_stages)
        if config.num_stages > 1:
            sch.annotate(co, "software_pipeline_stage", [0, config.num_stages - 1])
            sch.annotate(co, "software_pipeline_order", [0, 1])

        # Step 4. Mark the loops that the weight unrolls
        init = sch.decompose_reduction(accumulate, co)
        n0, y0, x0, k0 = sch.get_loops(init)[-4:]
        _unroll(sch, k=[k, k0], c=[channels], other=[co, ci, r, s, ni, yi, xi, n0, y0, x0, steps])
        return sch


def _unroll(sch: Schedule, **axes: list[LoopRV]) -> None:
    for axis, loops in axes.items():
        for loop in loops:
            sch.annotate(loop, UNROLLED, axis)


template = Sparse()
