"""Convolution in narrow groups on the tensor cores of NVIDIA GPUs: a warp computes pixels of one group.

A block brings a tile of the input, whole lines with what windows reach beyond it, into shared memory by asynchronous
copies, once for all taps; `ldmatrix` makes the columns of im2col from it. A group of 8 channels has two taps in an
instruction, so nothing is multiplied by zeros that stand between groups, and no infinity goes from one to another. Two
groups of 4 channels are read together and multiplied one after the other.

Sums go from registers to the output. There is no pipeline in a block: blocks that share a multiprocessor take turns at
copying and multiplying.
"""

from __future__ import annotations

from math import gcd

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import PRODUCT, RING
from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.grouped_tiles import EIGHT, LANES, lays_out_group_weight, unit_outputs
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW

from ...template import Layouts
from ..gemm.schedule import copy_asynchronously, spread_over_grid
from ..gemm.tiles import VECTOR
from .intrinsics import product_function
from .model import ablations, default_config, estimate, features, obstacle, space
from .tiles import LEAST, Config

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

LAYOUTS = Layouts(x=("NHWC",), w=("KRSC", "KCRS"), output=("NHWC",), dtypes=NARROW)

OPEN_SIZES: tuple[str, ...] = ("batch",)


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the computation; the config must be legal for the problem."""
    # Step 0. The computation, rounded up to whole tiles
    workload, tile = compute.with_open_sizes(problem), (config.block_y, config.block_x, config.warps_n)
    # TVM cannot tell that the sums of a tile are all that the output reads of it.
    sch = Schedule(te.create_prim_func(compute.grouped_tiles(workload, tile)), enable_check=False)
    names = ("pixels", "weights", "product", "sums", "output")
    pixels, weights, product, sums, output = (sch.get_sblock(name) for name in names)
    sch.compute_inline(sums)

    # Step 1. Tile the output: blocks, then threads as tensor cores have the sums, then those of a thread
    n, y, x, k = sch.get_loops(output)
    own = unit_outputs(workload) // 4
    n, image = sch.split(n, [None, config.images])
    by, wm, i, h = sch.split(y, [None, config.warps_m, config.rows, 2])
    bx, p, j = sch.split(x, [None, EIGHT, config.columns])
    bk, wn, q, lane = sch.split(k, [None, config.warps_n, 4, own])
    sch.reorder(n, by, bx, bk, image, wm, wn, p, q, i, j, h, lane)
    sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")  # blocks that read the same lines run side by side
    thread = sch.fuse(image, wm, wn, p, q)
    sch.bind(thread, "threadIdx.x")
    step, vector = sch.split(lane, [None, gcd(own, VECTOR)])
    for loop in (i, j, h, step):
        sch.unroll(loop)
    sch.vectorize(vector)

    # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
    sch.compute_at(product, thread, preserve_unit_loops=True)
    sch.set_scope(product, 0, "local")
    stored = sch.cache_write(output, 0, "local")  # TVM has no vectors of more than four conditions to compute it in
    sch.reverse_compute_at(stored, h)
    step, vector = sch.split(
        sch.get_loops(stored)[-1], [None, gcd(own, COPY_BYTES // workload.output_storage.itemsize)]
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

    # Step 4. Lay out the weight in a kernel of its own
    if lays_out_group_weight(workload):
        spread_over_grid(sch, sch.get_sblock("packed"))
    return sch
