"""Depthwise convolution on the tensor cores of NVIDIA GPUs: rows of taps are bands of matrices.

A block brings planes of some images, or tiles of them, with what windows reach beyond them, into shared memory, and the
taps of their channels. A warp computes eight rows of outputs of each image: it multiplies the columns under them by the
band of a row of taps, one row after the other. So of 31x31 taps a band of 16 outputs multiplies 1.5 times as many
numbers as there are, on units that are sixteen times as fast.

Sums go from registers to the output. There is no pipeline in a block: blocks that share a multiprocessor take turns at
copying and multiplying.
"""

from __future__ import annotations

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.annotations import PRODUCT, RING
from tvmconv.compute.depthwise.bands import LEAST_COPY, VECTOR_BYTES, columns_of, lanes
from tvmconv.problem import Problem

from ...template import Layouts
from ..gemm.schedule import copy_asynchronously, spread_over_grid
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

LAYOUTS = Layouts()

OPEN_SIZES: tuple[str, ...] = ("batch",)


IN_MEMORY = 3
"""The last dimensions of the lines and of the taps, of which a warp finds its own."""


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
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
    if lanes(workload) * workload.itemsize >= LEAST_COPY:
        copy_asynchronously(sch, lines, config.threads, permuted=False)
    else:
        own = len(sch.get(lines).iter_vars)  # the loops that were made when it was moved to where it is read
        _, spread = sch.split(sch.fuse(*sch.get_loops(lines)[-own:]), [None, config.threads])
        sch.bind(spread, "threadIdx.x")
    copy_asynchronously(sch, taps, config.threads, permuted=False)
    init = sch.decompose_reduction(product, chunk)
    for loop in sch.get_loops(init)[-10:]:
        sch.unroll(loop)
    sch.annotate(sch.blockize(image), PRODUCT, [*product_function(problem, config), IN_MEMORY])
    sch.annotate(chunk, RING, [0, 0, 0])

    # Step 4. Lay out the taps in a kernel of its own
    spread_over_grid(sch, packed)
    return sch
