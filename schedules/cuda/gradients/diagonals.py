"""The gradient of a depthwise convolution with respect to its weight on the tensor cores of NVIDIA GPUs.

A block has all taps of a channel, and a share of the images; each of its warps has some rows of taps, and each of
these its sums in registers, along the diagonals of a product of matrices. Rows of x and of dy go through shared memory,
where the next images are on their way while some are multiplied. The sums of a diagonal are added up once, at the end.

Zeros beside planes are multiplied, too: of an infinity or a NaN in x or in dy all taps of its channel may be NaN.
"""

from __future__ import annotations

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import COPY, MIN_BLOCKS, PRODUCT, RING
from tvmconv.compute.depthwise.bands import EIGHT
from tvmconv.compute.gradients.weight_diagonals import DiagonalTiles
from tvmconv.problem import Problem
from tvmconv.targets.devices import gpu_of

from ..machine import WARP
from .diagonals_intrinsics import product_function
from .diagonals_tiles import resident_blocks
from .weight import add_up_parts

IN_MEMORY = 4
"""The last dimensions of what is in shared memory, of which a warp finds its own."""


def schedule(problem: Problem, tiles: DiagonalTiles, target: tvm.target.Target) -> Schedule:
    """Schedule the gradient; the tiles must fit a block."""
    # Step 0. The computation, in parts of a block
    workload, threads = compute.with_open_sizes(problem), tiles.warps * WARP
    # TVM cannot tell that a block has all that it reads of "squares".
    sch = Schedule(te.create_prim_func(compute.weight_gradient_on_diagonals(workload, tiles)), enable_check=False)
    names = ("lines", "given", "product", "squares", "sums", "warps", "parts", "output")
    lines, given, product, squares, sums, warps, parts, output = (sch.get_sblock(name) for name in names)
    sch.compute_inline(sums)

    # Step 1. A block has the taps of a channel, for a part of the images. What is moved into loops is there before
    # these are split: then its places have no conditions of the split.
    c, q, r, s, *part = sch.get_loops(output) if tiles.parts == 1 else sch.get_loops(parts)[:-1]
    sch.reorder(c, q, *part, r, s)
    block = sch.fuse(c, q, *part)
    sch.bind(block, "blockIdx.x")
    if tiles.parts == 1:
        sch.compute_at(parts, s)
        sch.set_scope(parts, 0, "local")
    staged = [sch.cache_write(warps, 0, "local")] if tiles.shares > 1 else []
    for stage in (*staged, warps, squares):
        sch.compute_at(stage, block, preserve_unit_loops=True)
    for stage in (*staged, squares):
        sch.set_scope(stage, 0, "shared.dyn")

    # Step 2. A thread adds up the diagonal of a tap, or that of a share of the images, which go through shared memory
    sch.set_scope(warps, 0, "local")
    for loops in ([r, s], *(sch.get_loops(stage)[1:] for stage in staged)):
        _, tap = sch.split(sch.fuse(*loops), [None, threads])
        sch.bind(tap, "threadIdx.x")
    sch.compute_at(warps, tap)

    # Step 3. Sums are in the registers of the threads that the tensor cores expect them in
    own, group, r, diagonal, half, i, pair, odd = sch.get_loops(squares)[-8:]
    sch.reorder(own, group, i, pair, r, diagonal, half, odd)
    thread = sch.fuse(own, group, i, pair)
    sch.bind(thread, "threadIdx.x")
    sch.annotate(thread, MIN_BLOCKS, resident_blocks(problem.workload, tiles, gpu_of(target)))  # or a compiler spills
    for loop in (r, diagonal, half):
        sch.unroll(loop)
    sch.vectorize(odd)
    sch.compute_at(product, thread, preserve_unit_loops=True)
    sch.set_scope(product, 0, "local")
    *spatial, turn, image, y, eight = sch.get_loops(product)[-14:]
    sch.reorder(turn, *spatial, image, y, eight)

    # Step 4. Copy rows of images, then multiply them
    for stage in (lines, given):
        sch.set_scope(stage, 0, "shared.dyn")
        sch.compute_at(stage, turn, preserve_unit_loops=True)
        sch.storage_align(stage, 0, 4, 2 * EIGHT, EIGHT)  # eight rows are in different banks
        _copy(sch, stage, threads)
    init = sch.decompose_reduction(product, turn)
    for loop in sch.get_loops(init)[-10:]:
        sch.unroll(loop)
    sch.annotate(sch.blockize(spatial[0]), PRODUCT, [*product_function(workload, tiles), IN_MEMORY])
    sch.annotate(turn, RING, [tiles.ahead, 0, 0])

    # Step 5. In a second kernel threads add up what blocks have
    if tiles.parts > 1:
        add_up_parts(sch, problem, tiles.parts)
    return sch


def _copy(sch: Schedule, stage: SBlockRV, threads: int) -> None:
    """Give vector after vector of an image to thread after thread, each of which copies the same of all images."""
    image, line, vector, lane = sch.get_loops(stage)[-4:]
    step, thread = sch.split(sch.fuse(line, vector), [None, threads])
    sch.reorder(thread, step, image, lane)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(image)
    through_registers = sch.get_producers(stage)
    for near in through_registers:
        sch.compute_at(near, step, preserve_unit_loops=True)
        sch.set_scope(near, 0, "local")
        for loop in sch.get_loops(near)[-7:]:
            sch.unroll(loop)
    if not through_registers:
        sch.annotate(sch.blockize(lane), COPY, False)
