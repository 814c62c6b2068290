"""Depthwise convolution of whole small planes on the tensor cores of NVIDIA GPUs.

A block copies planes of some images and neighbouring channels into shared memory as they lie, which is one run of an
image in NCHW, and the taps of its channels. A warp has a channel, or in NHWC two neighbours: it multiplies rows of taps
by rows of its planes, all images together, so that matrices of taps are made once for all of them. Zeros around a plane
are not copied; a thread puts them where its row or column is beside it. The sums go through shared memory to the
output, so that it is written in whole runs.

There is no pipeline in a block: blocks that share a multiprocessor take turns at copying and multiplying. On an H100 in
float16 7x7 windows of 128x384x14x14 take 18.3 µs, and 29.3 in NHWC, where a copy of the same bytes takes 17.9; 13x13 of
32x1024x7x7 take 8.6 µs, and 10.6 in NHWC, for 4.6.
"""

from __future__ import annotations

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import PRODUCT, RING, STORE
from tvmconv.compute.depthwise.bands import LEAST_COPY
from tvmconv.compute.depthwise.planes import copied, neighbours, side_by_side
from tvmconv.problem import Problem

from ...template import Layouts
from ..gemm.schedule import copy_asynchronously
from .intrinsics import product_function, store_function
from .model import ablations, default_config, estimate, features, obstacle, space
from .tiles import LEAST, Config, channels_of, pixel_lanes

__all__ = [
    "LAYOUTS",
    "LEAST",
    "OPEN_SIZES",
    "VERSION",
    "Config",
    "ablations",
    "default_config",
    "estimate",
    "features",
    "obstacle",
    "schedule",
    "space",
]

VERSION = 1

LAYOUTS = Layouts(x=("NCHW", "NHWC"), output=("NCHW", "NHWC"), dtypes=("float16", "bfloat16"))

OPEN_SIZES: tuple[str, ...] = ()
"""None: a block of one image, which all batches have, makes its matrices of taps for that alone. On an H100 7x7 of
32x384x14x14 take 18.4 µs so, and 7.7 with four images in a block."""

IN_MEMORY = 3
"""The last dimensions of the planes and of the taps, of which a warp finds its own."""


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the computation; the config must be legal for the problem."""
    # Step 0. The computation
    workload, own = problem.workload, neighbours(problem.workload)
    last, channels = workload.layout == "NHWC", channels_of(workload, config)
    images = config.images // side_by_side(workload, config.images)
    # TVM cannot tell that the sums of whole planes are all that the output reads.
    sch = Schedule(te.create_prim_func(compute.depthwise_planes(workload, config.images, channels)), enable_check=False)
    names = ("lines", "taps", "product", "sums", "planes", "output")
    lines, taps, product, sums, planes, output = (sch.get_sblock(name) for name in names)
    sch.compute_inline(planes)
    store = sch.cache_write(output, 0, "shared.dyn")

    # Step 1. Tile the output: blocks, warps, threads as tensor cores have the sums, then those of a thread
    n, k, eight, band, two, column, pair, row = sch.get_loops(sums)
    bn, image = sch.split(n, [None, images])
    bk, wk, channel = sch.split(k, [None, config.warps, own])
    sch.reorder(bn, bk, wk, two, pair, row, image, eight, band, column, channel)
    block = sch.fuse(bn, bk)
    sch.bind(block, "blockIdx.x")
    thread = sch.fuse(wk, two, pair)
    sch.bind(thread, "threadIdx.x")
    for loop in (row, image, eight, band):
        sch.unroll(loop)
    of_columns = side_by_side(workload, config.images) == 1 and workload.output_size[1] % 2 == 0
    (sch.vectorize if of_columns and not last else sch.unroll)(column)
    (sch.vectorize if last else sch.unroll)(channel)
    sch.reverse_compute_inline(output)

    # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
    sch.compute_at(product, thread, preserve_unit_loops=True)
    sch.set_scope(product, 0, "local")
    image = sch.get_loops(product)[-10]
    chunk = sch.add_unit_loop(image)

    # Step 3. Copy the planes and the taps, then multiply them
    *_, lanes = copied(workload, channels)
    for stage in (lines, taps):
        sch.set_scope(stage, 0, "shared.dyn")
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
        if stage is lines and lanes * workload.itemsize >= LEAST_COPY:
            copy_asynchronously(sch, stage, config.threads, permuted=False, around=1 if last else 0)
        else:  # mirrored taps are not as they lie in memory
            loops = sch.get_loops(stage)[-len(sch.get(stage).iter_vars) :]
            _, spread = sch.split(sch.fuse(*loops), [None, config.threads])
            sch.bind(spread, "threadIdx.x")
    if last:
        sch.storage_align(lines, 0, 2, pixel_lanes(config), 0)
    init = sch.decompose_reduction(product, chunk)
    for loop in sch.get_loops(init)[-8:]:
        sch.unroll(loop)
    sch.annotate(sch.blockize(image), PRODUCT, [*product_function(problem, config), IN_MEMORY])
    sch.annotate(chunk, RING, [0, 0, 0])

    # Step 4. Store whole runs
    sch.reverse_compute_at(store, block, preserve_unit_loops=True)
    if last:
        sch.storage_align(sums, 0, 2, pixel_lanes(config), 0)
    sch.annotate(sch.blockize(sch.get_loops(store)[-4]), STORE, store_function(problem, config))
    return sch
