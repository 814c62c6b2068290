"""Convolution of few input channels on the tensor cores of NVIDIA GPUs: the first layers of networks.

A block reads a tile of the input into shared memory, once for all taps, with the channels of a pixel side by side: what
a row of a window reads is contiguous there. Threads take the columns of im2col from it, two terms at a time, so no
columns are ever in memory. Sums go from registers to the output.

There is no pipeline in a block: blocks that share a multiprocessor take turns at copying and multiplying.
"""

from __future__ import annotations

from math import gcd

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import PRODUCT, RING
from tvmconv.compute.tensor.shallow_tiles import EIGHT, QUAD
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW

from ...template import Layouts
from ..gemm.schedule import copy_asynchronously, spread_over_grid
from ..gemm.tiles import VECTOR
from .intrinsics import product_function
from .model import ablations, default_config, estimate, features, obstacle, space
from .tiles import LEAST, SEGMENT, Config, store_vector

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

LAYOUTS = Layouts(x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=NARROW)

OPEN_SIZES: tuple[str, ...] = ("batch",)


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the computation; the config must be legal for the problem."""
    # Step 0. The computation, rounded up to whole tiles
    workload, outputs = compute.with_open_sizes(problem), config.outputs
    definition = compute.shallow_tiles(workload, (config.block_y, config.block_x, outputs, config.warps_n))
    # TVM cannot tell that the sums of a tile are all that the output reads of it.
    sch = Schedule(te.create_prim_func(definition), enable_check=False)
    names = ("pixels", "packed", "weights", "product", "sums", "planes", "output")
    pixels, packed, weights, product, sums, planes, output = (sch.get_sblock(name) for name in names)
    sch.compute_inline(planes)

    # Step 1. Tile the sums: blocks, then threads as tensor cores have them, then those of a thread. All of a tile are
    # computed, whether they are wanted or not: warps multiply together.
    n, by, bx, y, x, warp, k = sch.get_loops(sums)
    wm, i, h = sch.split(y, [config.warps_m, config.rows, 2])
    p, j = sch.split(x, [EIGHT, config.columns])
    bk, wn = sch.split(warp, [None, config.warps_n])
    q, own = sch.split(k, [QUAD, outputs // QUAD])
    in_planes, size = workload.out_layout == "NCHW", store_vector(problem.workload, config)
    few = gcd(size, VECTOR)  # TVM has no vectors of eight truth values, as activations take them
    vector, part, lane = sch.split(j if in_planes else own, [None, size // few, few])
    sch.reorder(n, by, bx, bk, wm, wn, p, q, i, h, own if in_planes else j, vector, part, lane)
    sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")  # blocks that read the same lines run side by side
    thread = sch.fuse(wm, wn, p, q)
    sch.bind(thread, "threadIdx.x")
    for loop in (i, h, own if in_planes else j, vector, part):
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
    along = [column] if workload.layout == "NCHW" else [column, channel]
    sch.reorder(*lines, *along)
    turn, group = sch.split(sch.fuse(*tile, *lines), [None, config.threads // SEGMENT])
    step, lane = sch.split(sch.fuse(*along), [None, SEGMENT])
    sch.reorder(turn, step, group, lane)
    sch.bind(sch.fuse(group, lane), "threadIdx.x")
    sch.annotate(pixels, "tirx.manifest_shared_memory_local_stage", 1)  # all loads are under way before one is stored
    sch.storage_align(pixels, 0, 3, 2, 0)  # lines are whole words
    sch.storage_align(weights, 0, 1, 2 * EIGHT, EIGHT)  # vectors of a matrix are in different banks
    copy_asynchronously(sch, weights, config.threads, permuted=False)
    init = sch.decompose_reduction(product, chunk)
    for loop in sch.get_loops(init)[-7:]:
        sch.unroll(loop)
    sch.annotate(sch.blockize(spatial[0]), PRODUCT, list(product_function(problem, config)))
    sch.annotate(chunk, RING, [0, 0, 0])

    # Step 4. Compute what is wanted of a tile, and store it
    stored = sch.cache_write(output, 0, "local")
    sch.reverse_compute_inline(output)
    sch.reverse_compute_at(stored, vector, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(stored)[-1])

    # Step 5. Lay out the weight in a kernel of its own
    spread_over_grid(sch, packed)
    return sch
