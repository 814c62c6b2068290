"""Depthwise convolution on the tensor cores of NVIDIA GPUs: rows of taps are bands of matrices.

A block brings planes of some images, or tiles of them, with what windows reach beyond them, into shared memory, and the
taps of their channels. A warp computes eight rows of outputs of each image: it multiplies the columns under them by the
band of a row of taps, one row after the other. So with 31x31 taps a band of 16 outputs takes 1.5 times the products
that are needed, on units that are sixteen times as fast.

Sums go from registers to the output. There is no pipeline in a block: blocks that share a multiprocessor take turns at
copying and multiplying.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import PRODUCT, RING
from tvmconv.compute.depthwise.bands import (
    BAND,
    EIGHT,
    VECTOR_BYTES,
    columns_of,
    lanes,
    lines_read,
    reach,
    sequences_as_rows,
    surplus,
)
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.device_code import function, included
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, divisors, named, wasted
from ...template import Layouts
from ..gemm.schedule import copy_asynchronously, spread_over_grid
from ..machine import PRODUCTS, QUARTERS
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests, tensor_core_obstacle
from ..tensor.intrinsics import TYPES
from ..tensor.tiles import tf32_products
from .tiles import (
    Config,
    blocks,
    copied_vectors,
    is_copied_asynchronously,
    line_bytes,
    plane_bytes,
    products,
    registers_of,
    shared_bytes,
    taps_bytes,
    taps_rows,
)

IN_MEMORY = 3
"""The number of last dimensions of "lines" and "taps" that are not indexed for a warp: it finds its elements itself."""

MAX_SPLIT_REGISTERS = 144
"""The most registers by `registers_of` where factors are split: NVRTC spilled some of 152, in kernels limited to
128."""

MAX_BANDS = 16
"""The most bands of a warp."""

MAX_WASTE = 3.0
"""The most outputs that whole tiles compute, as a multiple of the outputs wanted."""

COPYING, PLACING, STORING, BEGINNING = 12.0, 8.0, 8.0, 80.0
"""The instructions of a thread for a copy, for the address of one that is not asynchronous, for a sum that it stores,
and those that it begins with."""


class DepthwiseBands(GpuTemplate[Config]):
    """Depthwise convolution on tensor cores, whose rows of taps are bands of matrices."""

    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(warps_y=1, block_x=BAND, images=1, channels=1)
    examples = (
        Problem(
            ConvWorkload.depthwise((2, 6, 7, 7), (6, 1, 13, 13), dtype="float16", residual=True, activation="relu")
        ),
        Problem(ConvWorkload.depthwise((2, 2, 24, 24), (2, 1, 31, 31), scale=True)),
        Problem(ConvWorkload.depthwise((3, 2, 8, 16), (2, 1, 3, 9), padding=(0, 5, 2, 1)), precision="tf32"),
        Problem(
            ConvWorkload.depthwise((1, 4, 18, 22), (4, 1, 5, 5), dtype="bfloat16", residual=True), open_sizes=OPEN_SIZES
        ),
    )

    MAX_UNROLLED = 512
    """The most products of a warp under a row of taps, which follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take dense windows of planes that each have one output, and that fit in shared memory."""
        if (found := obstacle_on_tensor_cores(problem, target)) is not None:
            return found
        workload = problem.workload
        if problem.open_sizes and sequences_as_rows(workload) is not workload:
            return "takes no number of sequences that is left open"
        if not self.is_legal(problem, self.LEAST, target):
            return f"takes windows that fit in shared memory, not of {'x'.join(map(str, workload.kernel))}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(problem, config)

    def max_registers(self, problem: Problem, config: Config) -> int:
        of_threads = super().max_registers(problem, config)
        return min(of_threads, MAX_SPLIT_REGISTERS) if tf32_products(problem) > 1 else of_threads

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(sequences_as_rows(problem.workload), config)

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(sequences_as_rows(problem.workload), config)

    def instructions(self, problem: Problem, config: Config) -> int:
        return (
            config.images * len(products(sequences_as_rows(problem.workload), config)) * max(1, tf32_products(problem))
        )

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = sequences_as_rows(problem.workload)
        height, width = workload.output_size
        batch = 1 if "batch" in problem.open_sizes else workload.batch

        def whole_bands(config: Config) -> bool:
            return config.block_x % BAND == 0

        def whole_images(config: Config) -> bool:
            return batch % config.images == 0

        def whole_channels(config: Config) -> bool:
            return workload.in_channels % config.channels == 0

        def waste(config: Config) -> bool:
            least = wasted(height, EIGHT) * wasted(width, BAND)
            return wasted(height, config.block_y) * wasted(width, config.block_x) <= max(MAX_WASTE, least)

        return named(whole_bands, whole_images, whole_channels, waste)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles of one to sixteen warps, hardly larger than a plane."""
        workload = sequences_as_rows(problem.workload)
        height, width = workload.output_size
        max_y, max_x = ceil_div(height, EIGHT), ceil_div(width, BAND)
        known = {
            Config(warps_y, bands * BAND, images, channels)
            for warps_y in {1, 2, 4, 8, min(max_y, 16), ceil_div(max_y, 2)}
            for bands in {1, 2, 4, 8, min(max_x, MAX_BANDS), ceil_div(max_x, 2)}
            for images, channels in product(divisors(workload.batch, 8), divisors(workload.in_channels, 8))
            if warps_y <= max_y and bands <= min(max_x, MAX_BANDS)
            if warps_y * channels <= 16 and bands * images <= 16
        }
        yield self.LEAST
        yield from sorted(known, key=lambda config: tuple(vars(config).values()))

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload = sequences_as_rows(problem.workload)
        max_y, max_x = (ceil_div(size, step) for size, step in zip(workload.output_size, (EIGHT, BAND), strict=True))
        return {
            "warps_y": tuple(range(1, min(16, max_y) + 1)),
            "block_x": tuple(range(BAND, min(MAX_BANDS, max_x) * BAND + 1, BAND)),
            "images": divisors(workload.batch, 8),
            "channels": divisors(workload.in_channels, 8),
        }

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        """Return the work; as warps wait for each other's copies, those of a quarter begin instructions in turn."""
        workload, warps = sequences_as_rows(problem.workload), config.threads // WARP
        spans = [last - first for first, last in (taps_rows(workload, config, warp) for warp in range(config.warps_y))]
        rows, longest = sum(max(0, span) for span in spans) * config.channels, max(spans)
        pairs, parts = products(workload, config), max(1, tf32_products(problem))
        columns, matrices = len({block for *_, block in pairs}), 4 * len({step for _, step, _ in pairs})
        splitting = 0 if workload.dtype in NARROW else 3 * (parts - 1) + 1  # instructions for each factor
        of_row = config.images * (parts * len(pairs) + columns * (0.5 + 2 * splitting) + 3)
        of_row += matrices * (1 + splitting) + 6
        lines, taps = copied_vectors(workload, config)
        in_a_loop = 0.0 if is_copied_asynchronously(workload) else lines
        others = BEGINNING + (lines + taps) * COPYING + in_a_loop * PLACING + config.sums * STORING
        read = lines * lanes(workload) * workload.itemsize + taps * VECTOR_BYTES
        multiplied = rows * config.images * len(pairs) * parts * PRODUCTS
        written = config.channels * config.images * prod(config.tile) * workload.itemsize
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=rows * of_row / warps + others,
            moved=memory_bytes(workload, target),
            fetched=config.threads * read + written,
            accessed=rows * (matrices + 2 * columns * config.images) + warps * (4 * (lines + taps) + config.sums),
            multiplied=multiplied / tensor_instructions(target)["mma"].products,
            arrivals=2 + in_a_loop,
            serial=(longest * of_row + others) * (1 + warps / QUARTERS),
            kernels=1 if problem.constant_weight else 2,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = sequences_as_rows(problem.workload)
        height, width = workload.output_size
        return {
            "sums": config.sums,
            "products": len(products(workload, config)),
            "rows": workload.kernel[0],
            "shared_bytes": shared_bytes(workload, config),
            "waste_y": wasted(height, config.block_y),
            "waste_x": wasted(width, config.block_x),
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        return {
            "several warps": replace(config, warps_y=1, channels=1),
            "several images": replace(config, images=1),
            "wide tiles": replace(config, block_x=BAND),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the computation; the config must be legal for the problem."""
        # Step 0. The computation, rounded up to whole tiles
        workload, tile = compute.with_open_sizes(problem), (config.block_y, config.block_x)
        # TVM cannot tell that the sums of a tile are all that the output reads of it.
        sch = Schedule(te.create_prim_func(compute.depthwise_bands(workload, tile)), enable_check=False)
        names = ("lines", "packed", "taps", "product", "sums", "planes", "output")
        lines, packed, taps, product, sums, planes, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(planes)

        # Step 1. Tile the output: blocks, warps, threads as tensor cores have the sums, then those of a thread
        n, k, ty, tx, wy, band, p, column, q, row = sch.get_loops(sums)
        bn, image = sch.split(n, [None, config.images])
        bk, wk = sch.split(k, [None, config.channels])
        sch.reorder(bn, bk, ty, tx, wk, wy, p, q, image, band, row, column)
        sch.bind(sch.fuse(bn, bk, ty, tx), "blockIdx.x")
        thread = sch.fuse(wk, wy, p, q)
        sch.bind(thread, "threadIdx.x")
        for loop in (image, band, row):
            sch.unroll(loop)
        (sch.vectorize if workload.output_size[1] % 2 == 0 else sch.unroll)(column)

        sch.reverse_compute_inline(output)

        # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
        sch.compute_at(product, thread, preserve_unit_loops=True)
        sch.set_scope(product, 0, "local")
        image = sch.get_loops(product)[-12]
        chunk = sch.add_unit_loop(image)

        # Step 3. Copy the lines and the taps, then multiply them
        for stage in (lines, taps):
            sch.set_scope(stage, 0, "shared.dyn")
            sch.compute_at(stage, chunk, preserve_unit_loops=True)
        vector = columns_of(workload, VECTOR_BYTES)
        sch.storage_align(lines, 0, 4, 2 * vector, vector)  # eight lines are in different banks
        if is_copied_asynchronously(workload):
            copy_asynchronously(sch, lines, config.threads, permuted=False)
        else:
            dimensions = len(sch.get(lines).iter_vars)  # the loops that were made when it was moved to where it is read
            _, spread = sch.split(sch.fuse(*sch.get_loops(lines)[-dimensions:]), [None, config.threads])
            sch.bind(spread, "threadIdx.x")
        copy_asynchronously(sch, taps, config.threads, permuted=False)
        init = sch.decompose_reduction(product, chunk)
        for loop in sch.get_loops(init)[-10:]:
            sch.unroll(loop)
        sch.annotate(sch.blockize(image), PRODUCT, [*product_function(problem, config), IN_MEMORY])
        sch.annotate(chunk, RING, [0, 0, 0])

        # Step 4. Lay out the taps in a separate kernel
        spread_over_grid(sch, packed)
        return sch


def obstacle_on_tensor_cores(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take dense windows of planes that each have one output, on GPUs with tensor cores."""
    workload = problem.workload
    if not problem.is_depthwise:
        return "is for depthwise convolutions"
    if (found := tensor_core_obstacle(problem, target)) is not None:
        return found
    if workload.multiplier > 1:
        return f"takes one output channel for each input channel, not {workload.multiplier}"
    if workload.stride != (1, 1) or workload.dilation != (1, 1):
        return "takes strides and dilations of 1"
    return None


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    workload = sequences_as_rows(problem.workload)
    image = config.channels * plane_bytes(workload, config)
    tile = config.images, config.block_x // BAND, config.warps_y, line_bytes(workload, config), image
    windows = taps_bytes(workload), *workload.kernel, reach(workload), surplus(workload)
    rows, columns = lines_read(workload, config.tile)
    read = rows[0], len(rows), columns[0], len(columns)
    has_whole_planes = config.block_y >= workload.output_size[0]
    ends = (workload.padding[0], workload.height) if has_whole_planes else (0, 0)
    name = function("bands_product", TYPES[workload.dtype], tf32_products(problem), *tile, *windows, *read, *ends)
    return name, included("schedules/cuda/depthwise_bands/device.cuh")


template = DepthwiseBands()
