"""Convolution of few input channels on the tensor cores of NVIDIA GPUs: the first layers of networks.

A block reads a tile of the input into shared memory, once for all taps, with the channels of a pixel side by side: the
elements of a row of a window are contiguous there. Threads take the columns of im2col from it, two terms at a time, so
no columns are ever in memory. Sums go from registers to the output.

There is no pipeline in a block: blocks that share a multiprocessor take turns at copying and multiplying.
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
from tvmconv.compute.annotations import PRODUCT, RING
from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.shallow_tiles import EIGHT, QUAD, STEP, instructions_of_sum, pixel_channels, window_terms
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
from ..grouped.tiles import MAX_UNROLLED
from ..machine import LINE, PRODUCTS, SECTOR
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests, several_warps, tensor_core_obstacle
from ..tensor.intrinsics import TYPES
from .tiles import (
    FOR_A_SUM,
    MAX_SUMS,
    OTHER_REGISTERS,
    SEGMENT,
    Config,
    accesses,
    blocks,
    elements_read,
    instructions,
    line_bytes,
    registers_of,
    shared_bytes,
    store_vector,
    weight_pitch,
)

MAX_CHANNELS = 4
"""The most input channels: with more, a tap fills at least half of an asynchronous copy, as `cuda/tensor` has it."""

WIDTHS = (1, 2, 3, 4, 7)
"""The matrices of a block along a row of pixels in a default."""

LEAST_MATRICES, MAX_MATRICES = 2, 8
"""The matrices of pixels of a warp in a default: of fewer, loads of weights take as long as products."""

STEPPING = 20.0
"""The instructions of a thread for the addresses of a step's terms, read off machine code of sm_90."""

READING, COPYING, STORING, BEGINNING = 16.0, 16.0, 11.0, 130.0
"""The instructions of a thread for an element of the input that it brings to shared memory, for an asynchronous copy
with its address and for a sum that it stores, and those that it begins with, counted in machine code for sm_90."""

ELEMENT_ACCESSES = 3
"""The accesses of a warp for an element of each thread: two segments of lines are read, and stored together."""


class Shallow(GpuTemplate[Config]):
    """Convolution of few input channels on tensor cores, in half precision."""

    LAYOUTS = Layouts(x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=NARROW)
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(block_y=2, block_x=8, block_n=8, warps_m=1, warps_n=1)
    examples = (
        Problem(ConvWorkload.conv2d((1, 3, 20, 37), (64, 3, 7, 7), dtype="float16", stride=2, padding=3)),
        Problem(ConvWorkload.conv2d((2, 12, 32, 3), (24, 5, 3, 3), layout="NHWC", dtype="bfloat16", residual=True)),
        Problem(
            ConvWorkload.conv2d((1, 4, 10, 9), (40, 4, 3, 2), dtype="float16", residual=True),
            open_sizes=OPEN_SIZES,
        ),
    )
    MAX_UNROLLED = MAX_UNROLLED

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take images of few channels, whose windows have no gaps."""
        workload = problem.workload
        if not problem.is_dense or workload.groups > 1:
            return "is for dense convolutions in one group"
        if (found := tensor_core_obstacle(problem, target)) is not None:
            return found
        if workload.in_channels > MAX_CHANNELS:
            return f"takes up to {MAX_CHANNELS} input channels, not {workload.in_channels}"
        if workload.out_channels % EIGHT:
            return f"takes output channels in multiples of {EIGHT}, not {workload.out_channels}"
        if workload.dilation != (1, 1):
            return "takes a dilation of 1"
        if (terms := window_terms(workload)) < EIGHT:  # a copy of weights would be shorter than a vector
            return f"takes windows of {EIGHT} terms or more, not of {terms}"
        if not self.is_legal(problem, self.LEAST, target):
            return f"takes windows that fit in shared memory and code, not of {'x'.join(map(str, workload.kernel))}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(config)

    def max_registers(self, problem: Problem, config: Config) -> int:
        """Return the most registers of a thread: no more than those of a thread with `MAX_SUMS` sums."""
        return min(super().max_registers(problem, config), int(FOR_A_SUM * MAX_SUMS) + OTHER_REGISTERS)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def instructions(self, problem: Problem, config: Config) -> int:
        return instructions(problem.workload, config)

    def rules(self, problem: Problem) -> Tests[Config]:
        def whole_matrices(config: Config) -> bool:
            in_pixels = config.block_y % (2 * config.warps_m) == 0 and config.block_x % EIGHT == 0
            return in_pixels and config.block_n % (EIGHT * config.warps_n) == 0

        return named(whole_matrices)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles of two to eight warps, hardly larger than an image."""
        workload, (height, width) = problem.workload, problem.workload.output_size
        yield self.LEAST
        for warps_m, warps_n, rows, columns in product((1, 2, 4, 8), (1, 2), (1, 2, 4), WIDTHS):
            if not (2 <= warps_m * warps_n <= 8 and LEAST_MATRICES <= rows * columns <= MAX_MATRICES):
                continue
            if warps_m * rows * 2 < height + 2 * warps_m and columns * EIGHT < width + EIGHT:
                for block_n in _block_outputs(workload):
                    yield Config(warps_m * rows * 2, columns * EIGHT, block_n, warps_m, warps_n)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        return {
            "block_y": tuple(sorted({default.block_y, 2, 4, 8, 16, 32})),
            "block_x": tuple(sorted({default.block_x, 8, 16, 24, 32, 56})),
            "block_n": tuple(sorted({default.block_n, *_block_outputs(problem.workload)})),
            "warps_m": (1, 2, 4, 8),
            "warps_n": (1, 2, 4),
        }

    def heuristics(self, problem: Problem) -> Tests[Config]:
        return named(several_warps)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, warps = problem.workload, config.threads // WARP
        matrices, outputs = config.rows * config.columns, config.outputs // EIGHT
        read, weights = elements_read(workload, config), config.block_n * weight_pitch(workload)
        issued = (
            instructions(workload, config)
            + instructions_of_sum(workload) * STEPPING
            + config.sums * STORING
            + BEGINNING
            + read * READING
            + weights / COPY_BYTES / config.threads * COPYING
        )
        loads = warps * instructions_of_sum(workload) * (4 * matrices * accesses(workload, config) + 2 * outputs)
        products = warps * instructions_of_sum(workload) * matrices * outputs * PRODUCTS
        pixels = prod(workload.read_by((config.block_y, config.block_x))) * workload.in_channels * workload.itemsize
        stored = config.sums * config.threads * workload.output_storage.itemsize
        written = stored * wasted(_stored_run(workload, config), SECTOR)
        kernels, weight = 1 + (not problem.constant_weight), prod(workload.w_shape) * workload.itemsize
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=pixels + weights + written,
            accessed=loads + warps * read * ELEMENT_ACCESSES + written / LINE,
            multiplied=products / tensor_instructions(target)["mma"].products,
            serial=issued,
            kernels=kernels,
            beside=2 * (kernels - 1) * weight,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload, (height, width) = problem.workload, problem.workload.output_size
        return {
            "sums": config.sums,
            "terms": instructions_of_sum(workload) * STEP,
            "shared_bytes": shared_bytes(workload, config),
            "waste_y": wasted(height, config.block_y),
            "waste_x": wasted(width, config.block_x),
            "waste_n": wasted(workload.out_channels, config.block_n),
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "tiles of several matrices": replace(config, block_y=2 * config.warps_m, block_x=EIGHT),
            "all outputs": replace(config, block_n=EIGHT, warps_n=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, rounded up to whole tiles
        workload, outputs = compute.with_open_sizes(problem), config.outputs
        definition = compute.shallow_tiles(workload, (config.block_y, config.block_x, outputs, config.warps_n))
        # TVM cannot tell that the sums of a tile are all that the output reads of it.
        sch = Schedule(te.create_prim_func(definition), enable_check=False)
        names = ("pixels", "packed", "weights", "product", "sums", "planes", "output")
        pixels, packed, weights, product, sums, planes, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(planes)

        # Step 1. Tile the sums: blocks, then threads as tensor cores have them, then those of a thread. All of a tile
        # are computed, whether they are wanted or not: warps multiply together.
        n, by, bx, y, x, warp, k = sch.get_loops(sums)
        wm, i, h = sch.split(y, [config.warps_m, config.rows, 2])
        p, j = sch.split(x, [EIGHT, config.columns])
        bk, wn = sch.split(warp, [None, config.warps_n])
        q, lane_outputs = sch.split(k, [QUAD, outputs // QUAD])
        stores_planes, size = workload.out_layout == "NCHW", store_vector(problem.workload, config)
        vector_lanes = gcd(size, VECTOR)  # TVM has no vectors of eight truth values, as activations take them
        vector, part, lane = sch.split(j if stores_planes else lane_outputs, [None, size // vector_lanes, vector_lanes])
        sch.reorder(n, by, bx, bk, wm, wn, p, q, i, h, lane_outputs if stores_planes else j, vector, part, lane)
        sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")  # blocks that read the same lines run side by side
        thread = sch.fuse(wm, wn, p, q)
        sch.bind(thread, "threadIdx.x")
        for loop in (i, h, lane_outputs if stores_planes else j, vector, part):
            sch.unroll(loop)
        sch.vectorize(lane)

        # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
        sch.compute_at(product, thread, preserve_unit_loops=True)
        sch.set_scope(product, 0, "local")
        spatial = sch.get_loops(product)[-9:-2]
        chunk = sch.add_unit_loop(spatial[0])

        # Step 3. Copy the pixels and the weights, then multiply them
        for stage in (pixels, weights):
            sch.set_scope(stage, 0, "shared.dyn")
            sch.compute_at(stage, chunk, preserve_unit_loops=True)
        *tile, line, column, channel = sch.get_loops(pixels)[-6:]
        lines = (line, channel) if workload.layout == "NCHW" else (line,)
        fused_axes = [column] if workload.layout == "NCHW" else [column, channel]
        sch.reorder(*lines, *fused_axes)
        turn, group = sch.split(sch.fuse(*tile, *lines), [None, config.threads // SEGMENT])
        step, lane = sch.split(sch.fuse(*fused_axes), [None, SEGMENT])
        sch.reorder(turn, step, group, lane)
        sch.bind(sch.fuse(group, lane), "threadIdx.x")
        # All loads are under way before one is stored.
        sch.annotate(pixels, "tirx.manifest_shared_memory_local_stage", 1)
        sch.storage_align(pixels, 0, 3, 2, 0)  # lines are whole words
        sch.storage_align(weights, 0, 1, 2 * EIGHT, EIGHT)  # vectors of a matrix are in different banks
        copy_asynchronously(sch, weights, config.threads, permuted=False)
        init = sch.decompose_reduction(product, chunk)
        for loop in sch.get_loops(init)[-7:]:
            sch.unroll(loop)
        sch.annotate(sch.blockize(spatial[0]), PRODUCT, list(product_function(problem, config)))
        sch.annotate(chunk, RING, [0, 0, 0])

        # Step 4. Compute the wanted outputs of a tile, and store them
        stored = sch.cache_write(output, 0, "local")
        sch.reverse_compute_inline(output)
        sch.reverse_compute_at(stored, vector, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(stored)[-1])

        # Step 5. Lay out the weight in a separate kernel
        spread_over_grid(sch, packed)
        return sch


def _block_outputs(workload: ConvWorkload) -> list[int]:
    """Return the output channels of a block that are tried: all, or equal shares of them."""
    whole = ceil_to(workload.out_channels, EIGHT)
    return sorted({ceil_to(ceil_div(whole, parts), 2 * EIGHT) for parts in (1, 2, 3, 4)} | {whole})


def _stored_run(workload: ConvWorkload, config: Config) -> int:
    """Return the neighbouring bytes that a warp stores at once: of several threads, if each has one vector of them."""
    size = store_vector(workload, config)
    lane_outputs, threads = (config.columns, EIGHT) if workload.out_layout == "NCHW" else (config.outputs // QUAD, QUAD)
    return size * (threads if size == lane_outputs else 1) * workload.output_storage.itemsize


def product_function(problem: Problem, config: Config) -> tuple[str, str, int]:
    """Return the name and the source of the function that adds a tile's products to a thread's sums.

    It gets the addresses of all pixels and weights of a block, whose last three dimensions they are.
    """
    workload = problem.workload
    tile = config.warps_n, config.rows, config.columns, config.outputs // EIGHT, line_bytes(workload, config)
    windows = *workload.kernel, *workload.stride, pixel_channels(workload)
    name = function("shallow_product", TYPES[workload.dtype], *tile, *windows)
    return name, included("schedules/cuda/shallow/device.cuh"), 3


template = Shallow()
