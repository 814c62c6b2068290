"""Convolution in narrow groups on the tensor cores of NVIDIA GPUs: a warp computes pixels of one group.

A block brings a tile of the input, whole lines with what windows reach beyond it, into shared memory by asynchronous
copies, once for all taps; `ldmatrix` makes the columns of im2col from it. A group of 8 channels has two taps in an
instruction, so nothing is multiplied by zeros that stand between groups, and no infinity goes from one to another. Two
groups of 4 channels are read together and multiplied one after the other.

Sums go from registers to the output. There is no pipeline in a block: blocks that share a multiprocessor take turns at
copying and multiplying.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import gcd, prod
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import MIN_BLOCKS, PRODUCT, RING
from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.grouped_tiles import EIGHT, LANES, lays_out_group_weight, unit_inputs, unit_outputs, units
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.device_code import function, included
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, ceil_to, named, wasted
from ...template import Layouts
from ..gemm.schedule import copy_asynchronously, spread_over_grid
from ..gemm.tiles import VECTOR
from ..machine import LINE, PRODUCTS, SECTOR
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests, several_warps, tensor_core_obstacle
from ..tensor.intrinsics import TYPES
from .tiles import (
    MAX_UNROLLED,
    Config,
    blocks,
    has_pairs,
    instructions,
    pixel_bytes,
    registers_of,
    shared_bytes,
    sums,
    vectors,
)

MAX_CHANNELS = 64
"""The most channels of a group: with more, chunks of the reduction are shorter than a group."""

MAX_MATRICES = 8
"""The most matrices of sums of a warp in a default: with more, kernels were slower than with more and smaller warps."""

MAX_WASTE = 3.0
"""The most outputs that whole tiles compute, as a multiple of the outputs wanted."""

COPYING, STORING, BEGINNING = 16.0, 4.0, 300.0
"""The instructions of a thread for an asynchronous copy with its address and for a sum that it stores, and those that
it begins with, counted in machine code for sm_90."""

FULL_REGISTERS = 256
"""The number of threads of a block up to which each may have the most registers that a thread can have.

For blocks of more threads whose registers do not suffice, `ptxas` gave each 32, unless told that one block is enough:
5x5 windows of 32x192x17x17 in eight groups took 302 µs so on an H200, where others of the space took 18 to 38.
"""


class Grouped(GpuTemplate[Config]):
    """Convolution in narrow groups on tensor cores, in half precision."""

    LAYOUTS = Layouts(x=("NHWC",), w=("KRSC", "KCRS"), output=("NHWC",), dtypes=NARROW)
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(block_y=2, block_x=8, warps_m=1, warps_n=1)
    examples = (
        Problem(ConvWorkload.conv2d((2, 16, 5, 7), (16, 4, 3, 3), groups=4, dtype="float16", residual=True).in_nhwc()),
        Problem(ConvWorkload.conv2d((1, 32, 12, 13), (32, 8, 3, 3), groups=4, dilation=2, dtype="bfloat16").in_nhwc()),
        Problem(ConvWorkload.conv2d((1, 48, 9, 10), (48, 16, 3, 3), groups=3, stride=2, dtype="float16").in_nhwc()),
        Problem(
            ConvWorkload.conv2d((2, 80, 6, 6), (80, 40, 1, 1), groups=2, dtype="bfloat16").in_nhwc(),
            open_sizes=OPEN_SIZES,
        ),
    )
    MAX_UNROLLED = MAX_UNROLLED

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take groups of whole vectors of channels, or pairs of groups of four."""
        workload = problem.workload
        inputs, outputs = workload.w_shape[1], workload.multiplier
        if not problem.is_dense or workload.groups == 1:
            return "is for convolutions in groups of several channels"
        if (found := tensor_core_obstacle(problem, target)) is not None:
            return found
        pairs = inputs == outputs == LANES // 2 and workload.groups % 2 == 0
        if not pairs and (inputs % LANES or outputs % LANES or max(inputs, outputs) > MAX_CHANNELS):
            return (
                f"takes groups of multiples of {LANES} channels up to {MAX_CHANNELS}, or an even number of groups of "
                f"4, not of {inputs} to {outputs}"
            )
        if workload.window[1] < workload.stride[1]:  # TVM has no room in shared memory for columns that no window reads
            return (
                f"takes windows at least as wide as their stride of {workload.stride[1]}, not of {workload.window[1]}"
            )
        if not self.is_legal(problem, self.LEAST, target):
            return f"takes windows that fit in shared memory and code, not of {'x'.join(map(str, workload.kernel))}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(problem.workload, config)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def instructions(self, problem: Problem, config: Config) -> int:
        return instructions(problem.workload, config)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload, (height, width) = problem.workload, problem.workload.output_size

        def whole_matrices(config: Config) -> bool:
            return config.block_y % (2 * config.warps_m) == 0 and config.block_x % 8 == 0

        def whole_images(config: Config) -> bool:
            """Return whether all blocks have equal numbers of images, which TVM cannot prove for an open batch."""
            return workload.batch % config.images == 0 and ("batch" not in problem.open_sizes or config.images == 1)

        def waste(config: Config) -> bool:
            channels = wasted(units(workload), config.warps_n)
            return wasted(height, config.block_y) * wasted(width, config.block_x) * channels <= max(
                MAX_WASTE, wasted(height, 2) * wasted(width, 8)
            )

        return named(whole_matrices, whole_images, waste)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles of two to sixteen warps, hardly larger than an image."""
        workload, (height, width) = problem.workload, problem.workload.output_size
        limit = MAX_MATRICES // (1 + has_pairs(workload))
        known = {
            Config(warps_m * rows * 2, columns * 8, warps_m, warps_n, images)
            for warps_m, rows, columns, warps_n in product((1, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4, 7), range(1, 17))
            for images in (1, 2, 4, 8)
            if warps_n <= units(workload) and 64 <= images * warps_m * warps_n * WARP <= 512
            if rows * columns <= limit
            if warps_m * rows * 2 < height + 2 * warps_m and columns * 8 < width + 8
        }
        yield self.LEAST
        yield from sorted(known, key=lambda config: tuple(vars(config).values()))

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        return {
            "block_y": tuple(sorted({default.block_y, 2, 4, 6, 8, 12, 14, 16, 28})),
            "block_x": tuple(sorted({default.block_x, 8, 16, 24, 32, 56})),
            "warps_m": (1, 2, 4),
            "warps_n": tuple(range(1, min(16, units(problem.workload)) + 1)),
            "images": (1, 2, 4, 8),
        }

    def heuristics(self, problem: Problem) -> Tests[Config]:
        return named(several_warps)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, warps = problem.workload, config.threads // WARP
        steps, matrices, outputs = ceil_div(vectors(workload), 2), config.rows * config.columns, unit_outputs(workload)
        eights, stored = outputs // LANES, sums(workload, config)
        pixels = config.images * prod(workload.read_by((config.block_y, config.block_x)))
        across = _bytes_across(workload, config)
        weights = config.warps_n * outputs * vectors(workload) * COPY_BYTES
        copies = (pixels * across + weights) / COPY_BYTES / config.threads
        issued = instructions(workload, config) + stored * STORING + BEGINNING + copies * COPYING
        written = stored * config.threads * workload.output_storage.itemsize
        loads = warps * steps * (4 * matrices + 2 * eights)
        products = warps * steps * matrices * eights * (1 + has_pairs(workload)) * PRODUCTS
        laid_out = lays_out_group_weight(workload) and not problem.constant_weight
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=pixels * ceil_to(across, SECTOR) + weights + written,
            accessed=loads + pixels * ceil_div(across, LINE) + weights / LINE,
            multiplied=products / tensor_instructions(target)["mma"].products,
            serial=issued,
            kernels=1 + laid_out,
            beside=2 * laid_out * prod(workload.w_shape) * workload.itemsize,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload, (height, width) = problem.workload, problem.workload.output_size
        return {
            "sums": sums(workload, config),
            "vectors": vectors(workload),
            "shared_bytes": shared_bytes(workload, config),
            "waste_y": wasted(height, config.block_y),
            "waste_x": wasted(width, config.block_x),
            "channels": config.warps_n * unit_inputs(workload),
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        return {
            "tiles of several matrices": replace(config, block_y=2 * config.warps_m, block_x=8),
            "several groups": replace(config, warps_n=1),
            "several images": replace(config, images=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, rounded up to whole tiles
        workload, tile = compute.with_open_sizes(problem), (config.block_y, config.block_x, config.warps_n)
        # TVM cannot tell that the sums of a tile are all that the output reads of it.
        sch = Schedule(te.create_prim_func(compute.grouped_tiles(workload, tile)), enable_check=False)
        names = ("pixels", "weights", "product", "sums", "output")
        pixels, weights, product, sums, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(sums)

        # Step 1. Tile the output: blocks, then threads as tensor cores have the sums, then those of a thread
        n, y, x, k = sch.get_loops(output)
        lane_outputs = unit_outputs(workload) // 4
        n, image = sch.split(n, [None, config.images])
        by, wm, i, h = sch.split(y, [None, config.warps_m, config.rows, 2])
        bx, p, j = sch.split(x, [None, EIGHT, config.columns])
        bk, wn, q, lane = sch.split(k, [None, config.warps_n, 4, lane_outputs])
        sch.reorder(n, by, bx, bk, image, wm, wn, p, q, i, j, h, lane)
        sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")  # blocks that read the same lines run side by side
        thread = sch.fuse(image, wm, wn, p, q)
        sch.bind(thread, "threadIdx.x")
        if config.threads > FULL_REGISTERS:
            sch.annotate(thread, MIN_BLOCKS, 1)
        step, vector = sch.split(lane, [None, gcd(lane_outputs, VECTOR)])
        for loop in (i, j, h, step):
            sch.unroll(loop)
        sch.vectorize(vector)

        # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
        sch.compute_at(product, thread, preserve_unit_loops=True)
        sch.set_scope(product, 0, "local")
        stored = sch.cache_write(output, 0, "local")  # TVM has no vectors of more than four conditions to compute it in
        sch.reverse_compute_at(stored, h)
        step, vector = sch.split(
            sch.get_loops(stored)[-1], [None, gcd(lane_outputs, COPY_BYTES // workload.output_storage.itemsize)]
        )
        sch.unroll(step)
        sch.vectorize(vector)
        spatial = sch.get_loops(product)[-11:-4]
        chunk = sch.add_unit_loop(spatial[0])

        # Step 3. Copy the pixels and the weights, then multiply them
        for stage, axis in ((pixels, 4), (weights, 1)):
            sch.set_scope(stage, 0, "shared.dyn")
            sch.compute_at(stage, chunk, preserve_unit_loops=True)
            sch.storage_align(stage, 0, axis, 2 * LANES, LANES)  # vectors of a matrix are in different banks
            copy_asynchronously(sch, stage, config.threads, permuted=False)
        init = sch.decompose_reduction(product, chunk)
        for loop in sch.get_loops(init)[-7:]:
            sch.unroll(loop)
        sch.annotate(sch.blockize(spatial[0]), PRODUCT, list(product_function(problem, config)))
        sch.annotate(chunk, RING, [0, 0, 0])

        # Step 4. Lay out the weight in a separate kernel
        if lays_out_group_weight(workload):
            spread_over_grid(sch, sch.get_sblock("packed"))
        return sch


def _bytes_across(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of a pixel's channels that a block reads, which are side by side."""
    return config.warps_n * unit_inputs(workload) // LANES * COPY_BYTES


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a group's products to a thread's sums."""
    workload = problem.workload
    sizes = config.rows, config.columns, unit_outputs(workload) // 8, *pixel_bytes(workload, config)
    windows = *workload.kernel, *workload.stride, *workload.dilation, workload.w_shape[1]
    name = function("grouped_product", TYPES[workload.dtype], *sizes, *windows)
    return name, included("schedules/cuda/grouped/device.cuh")


template = Grouped()
