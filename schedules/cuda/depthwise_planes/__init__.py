"""Depthwise convolution of whole small planes on the tensor cores of NVIDIA GPUs.

A block copies planes of some images and neighbouring channels into shared memory in memory order, which is one run of
an image in NCHW, and the taps of its channels. A warp has a channel, or in NHWC two neighbours: it multiplies rows of
taps by rows of its planes, all images together, so that matrices of taps are made once for all of them. Zeros around a
plane are not copied; a thread uses zero where its row or column is outside the plane. The sums go through shared memory
to the output, so that it is written in whole runs.

There is no pipeline in a block: blocks that share a multiprocessor take turns at copying and multiplying. On an H100 in
float16 7x7 windows of 128x384x14x14 take 18.3 µs, and 29.3 in NHWC, where a copy of the same bytes takes 17.9; 13x13 of
32x1024x7x7 take 8.6 µs, and 10.6 in NHWC, for 4.6.
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
from tvmconv.compute.annotations import PRODUCT, RING, STORE
from tvmconv.compute.depthwise.bands import EIGHT, LEAST_COPY, VECTOR_BYTES
from tvmconv.compute.depthwise.planes import copied_runs, eights, neighbours, side_by_side
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.device_code import function, included
from tvmconv.targets.devices import gpu_of

from ...space import divisors, named, wasted
from ...template import Layouts
from ..depthwise_bands import obstacle_on_tensor_cores
from ..gemm.schedule import copy_asynchronously
from ..machine import PRODUCTS, QUARTERS, SECTOR, bank_reads
from ..model import Counts, in_runs, memory_bytes
from ..template import GpuTemplate, Tests
from ..tensor.intrinsics import TYPES
from .tiles import (
    Config,
    blocks,
    channels_of,
    image_elements,
    in_registers,
    lines_of,
    matrices,
    pairs,
    pixel_lanes,
    products,
    registers_of,
    shared_bytes,
    store_lanes,
    sums_of,
)

IN_MEMORY = 3
"""The number of last dimensions of "lines" and "taps" that are not indexed for a warp: it finds its elements itself."""

FEWEST = 2
"""The most elements in half precision of an array in shared memory that TVM moves to registers, being 32 bits, and then
misses."""

MAX_COUNTED_REGISTERS = 200
"""The most registers by `registers_of`: NVRTC took up to 25 more, of 255."""

MAX_IMAGES, MAX_WARPS = 32, 32
"""The most images and warps of a block."""

COPYING, STORING, FINISHING, BEGINNING = 10.0, 16.0, 3.0, 80.0
"""The instructions of a thread for a copy, for a vector that it stores, for a sum, and those that it begins with."""

TAPS_OF_TWO, TAPS, ROW = 8.0, 20.0, 6.0
"""The instructions that make the taps of two images side by side, or of one image, into a matrix, and the further
instructions for a row of the input, counted in machine code for sm_90."""

SOURCE = included("schedules/cuda/depthwise_planes/device.cuh")


class DepthwisePlanes(GpuTemplate[Config]):
    """Depthwise convolution of whole small planes on tensor cores, in half precision."""

    LAYOUTS = Layouts(x=("NCHW", "NHWC"), output=("NCHW", "NHWC"), dtypes=("float16", "bfloat16"), strided_x=("NHWC",))
    LEAST = Config(images=1, warps=1)
    examples = (
        Problem(
            ConvWorkload.depthwise((3, 3, 7, 7), (3, 1, 13, 13), dtype="float16", residual=True, activation="relu")
        ),
        Problem(ConvWorkload.depthwise((4, 8, 14, 14), (8, 1, 7, 7), dtype="bfloat16", scale=True).in_nhwc()),
        Problem(ConvWorkload.depthwise((2, 4, 18, 22), (4, 1, 5, 5), padding="VALID", dtype="float16")),
    )

    OPEN_SIZES: tuple[str, ...] = ()
    """No size can be open: blocks of one image, which divide every batch, make their matrices of taps for one image
    alone. On an H100 7x7 of 32x384x14x14 take 18.4 µs so, and 7.7 with four images in a block."""

    MAX_UNROLLED = 512
    """The most products of a warp for a row of the input, which follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take dense windows of small planes that each have one output."""
        if (found := obstacle_on_tensor_cores(problem, target)) is not None:
            return found
        workload = problem.workload
        if workload.layout != workload.out_layout:
            return f"takes no output in {workload.out_layout} from {workload.layout}"
        if workload.in_channels % neighbours(workload):
            return f"takes even numbers of channels in NHWC, not {workload.in_channels}"
        least = min(prod(workload.kernel), workload.height * workload.width, prod(workload.output_size))
        if least <= FEWEST:
            return f"takes windows and planes of more than {FEWEST} elements, not of {least}"
        if not self.is_legal(problem, self.LEAST, target):
            plane, window = ("x".join(map(str, sizes)) for sizes in (workload.output_size, workload.kernel))
            return f"takes small planes and windows, which a block has room for, not {plane} and {window}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(problem.workload, config)

    def max_registers(self, problem: Problem, config: Config) -> int:
        return min(super().max_registers(problem, config), MAX_COUNTED_REGISTERS)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def instructions(self, problem: Problem, config: Config) -> int:
        return products(problem.workload, config)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def whole_images(config: Config) -> bool:
            return workload.batch % config.images == 0

        def whole_channels(config: Config) -> bool:
            return workload.in_channels % channels_of(workload, config) == 0

        return named(whole_images, whole_channels)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        yield self.LEAST
        knobs = self.knobs(problem, self.LEAST)
        yield from (Config(images, warps) for images, warps in product(knobs["images"], knobs["warps"]))

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload = problem.workload
        return {"images": divisors(workload.batch, MAX_IMAGES), "warps": _warps(workload)}

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        """Return the work; as warps wait for each other at barriers, those of a quarter begin instructions in turn."""
        workload, is_nhwc = problem.workload, problem.workload.layout == "NHWC"
        issued, accesses = _issued_and_accesses(workload, config)
        multiplied = len(lines_of(workload)) * products(workload, config) * PRODUCTS
        pixels = config.images * (workload.height * workload.width + prod(workload.output_size))
        run = channels_of(workload, config) * workload.itemsize
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=config.warps,
            issued=issued,
            moved=memory_bytes(workload, target) * (in_runs(run) if is_nhwc else 1),
            fetched=run * (pixels + prod(workload.kernel)) * (wasted(run, SECTOR) if is_nhwc else 1),
            accessed=config.warps * accesses,
            multiplied=config.warps * multiplied / tensor_instructions(target)["mma"].products,
            arrivals=2,
            serial=issued * (1 + config.warps / QUARTERS),
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = problem.workload
        rows, bands = eights(workload)
        return {
            "sums": sums_of(workload, config),
            "products": products(workload, config),
            "rows": len(lines_of(workload)),
            "eights": rows,
            "bands": bands,
            "shared_bytes": shared_bytes(workload, config),
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        return {"several images": replace(config, images=1), "several warps": replace(config, warps=1)}

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the computation; the config must be legal for the problem."""
        # Step 0. The computation
        workload, neighbour_channels = problem.workload, neighbours(problem.workload)
        is_nhwc, channels = workload.layout == "NHWC", channels_of(workload, config)
        images = config.images // side_by_side(workload, config.images)
        # TVM cannot tell that the sums of whole planes are all that the output reads.
        sch = Schedule(
            te.create_prim_func(compute.depthwise_planes(workload, config.images, channels)), enable_check=False
        )
        names = ("lines", "taps", "product", "sums", "planes", "output")
        lines, taps, product, sums, planes, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(planes)
        store = sch.cache_write(output, 0, "shared.dyn")

        # Step 1. Tile the output: blocks, warps, threads as tensor cores have the sums, then those of a thread
        n, k, eight, band, two, column, pair, row = sch.get_loops(sums)
        bn, image = sch.split(n, [None, images])
        bk, wk, channel = sch.split(k, [None, config.warps, neighbour_channels])
        sch.reorder(bn, bk, wk, two, pair, row, image, eight, band, column, channel)
        block = sch.fuse(bn, bk)
        sch.bind(block, "blockIdx.x")
        thread = sch.fuse(wk, two, pair)
        sch.bind(thread, "threadIdx.x")
        for loop in (row, image, eight, band):
            sch.unroll(loop)
        of_columns = side_by_side(workload, config.images) == 1 and workload.output_size[1] % 2 == 0
        (sch.vectorize if of_columns and not is_nhwc else sch.unroll)(column)
        (sch.vectorize if is_nhwc else sch.unroll)(channel)
        sch.reverse_compute_inline(output)

        # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
        sch.compute_at(product, thread, preserve_unit_loops=True)
        sch.set_scope(product, 0, "local")
        image = sch.get_loops(product)[-10]
        chunk = sch.add_unit_loop(image)

        # Step 3. Copy the planes and the taps, then multiply them
        *_, lanes = copied_runs(workload, channels)
        for stage in (lines, taps):
            sch.set_scope(stage, 0, "shared.dyn")
            sch.compute_at(stage, chunk, preserve_unit_loops=True)
            if stage is lines and lanes * workload.itemsize >= LEAST_COPY:
                copy_asynchronously(sch, stage, config.threads, permuted=False, around=1 if is_nhwc else 0)
            else:  # mirrored taps are not in the order of memory
                loops = sch.get_loops(stage)[-len(sch.get(stage).iter_vars) :]
                _, spread = sch.split(sch.fuse(*loops), [None, config.threads])
                sch.bind(spread, "threadIdx.x")
        if is_nhwc:
            sch.storage_align(lines, 0, 2, pixel_lanes(config), 0)
        init = sch.decompose_reduction(product, chunk)
        for loop in sch.get_loops(init)[-8:]:
            sch.unroll(loop)
        sch.annotate(sch.blockize(image), PRODUCT, [*product_function(problem, config), IN_MEMORY])
        sch.annotate(chunk, RING, [0, 0, 0])

        # Step 4. Store whole runs
        sch.reverse_compute_at(store, block, preserve_unit_loops=True)
        if is_nhwc:
            sch.storage_align(sums, 0, 2, pixel_lanes(config), 0)
        sch.annotate(sch.blockize(sch.get_loops(store)[-4]), STORE, store_function(problem, config))
        return sch


def _warps(workload: ConvWorkload) -> tuple[int, ...]:
    """Return the numbers of warps of a block that make up the channels, in NHWC by whole vectors where they can."""
    every = divisors(workload.in_channels // neighbours(workload), MAX_WARPS)
    whole = tuple(warps for warps in every if warps * neighbours(workload) * workload.itemsize % VECTOR_BYTES == 0)
    return whole if workload.layout == "NHWC" and whole else every


def _issued_and_accesses(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the instructions of a warp, and its accesses to shared memory."""
    neighbour_channels, lines = neighbours(workload), len(lines_of(workload))
    pair = side_by_side(workload, config.images)
    halves = 2 * neighbour_channels * len({step for _, step in pairs(workload)}) * config.images // pair
    loads, combined = (1, 1) if neighbour_channels == 1 and workload.width % 2 == 0 else (2 // neighbour_channels, 3)
    of_row, of_planes = halves * (loads + combined), 0
    if in_registers(workload):  # loaded once, then shuffled
        of_row, of_planes = halves, of_row
    taps = neighbour_channels * (TAPS_OF_TWO if pair == 2 else TAPS * len(matrices(workload)))
    copies, stores = _copied_by(workload, config)
    sums, pieces = sums_of(workload, config), 4 if neighbour_channels == 2 else 1
    issued = lines * (taps + of_row + products(workload, config) + ROW) + of_planes + BEGINNING
    issued += copies * COPYING + stores * (STORING + pieces) + sums * FINISHING
    conflicts = 2 if neighbour_channels == 2 else 1
    accesses = lines * (taps / 3 + _shared_banks(workload, config) * halves * (1 if in_registers(workload) else loads))
    return issued, accesses + 4 * copies + conflicts * (4 * stores + sums / neighbour_channels)


def _shared_banks(workload: ConvWorkload, config: Config) -> float:
    """Return the number of reads of shared memory for eight rows of a matrix, of four words each.

    In NCHW planes of 7, 14 and 28 columns, for which the clocks above were fitted, up to two words are in one bank,
    which is part of the fit.
    """
    is_nhwc = workload.layout == "NHWC"
    row, pixel = eights(workload)[0] * workload.width, pixel_lanes(config) if is_nhwc else 1
    words = {(row_number * row + 2 * pair) * pixel // 2 for row_number in range(EIGHT) for pair in range(4)}
    reads = bank_reads(words)
    return reads if is_nhwc else max(1.0, reads / 2)


def _copied_by(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the number of vectors that a thread copies, and of vectors of the output that it stores."""
    pixels, vectors, _ = copied_runs(workload, channels_of(workload, config))
    taps = channels_of(workload, config) * prod(workload.kernel)
    outputs = config.images * channels_of(workload, config) * prod(workload.output_size) / store_lanes(workload, config)
    return (config.images * pixels * vectors + taps) / config.threads, outputs / config.threads


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    workload = problem.workload
    (top, left, _, _), pixel = workload.padding, pixel_lanes(config) if workload.layout == "NHWC" else 1
    tile = config.images, side_by_side(workload, config.images), neighbours(workload), *eights(workload)
    plane = image_elements(workload, config), pixel, workload.height, workload.width
    return function("planes_product", TYPES[workload.dtype], *tile, *plane, *workload.kernel, top, left), SOURCE


def store_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that stores the outputs of a block."""
    workload, pixels = problem.workload, prod(problem.workload.output_size)
    itemsize = workload.output_storage.itemsize
    runs, run = (pixels, itemsize) if workload.layout == "NHWC" else (1, pixels * itemsize)
    run *= channels_of(workload, config)
    staged_pitch = pixel_lanes(config) * itemsize if workload.layout == "NHWC" else run
    pitches = staged_pitch, config.threads, workload.out_channels * itemsize
    vector = store_lanes(workload, config) * itemsize
    return function("store_runs", config.images, runs, run, *pitches, vector, itemsize), SOURCE


template = DepthwisePlanes()
