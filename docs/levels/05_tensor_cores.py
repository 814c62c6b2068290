"""Level 5: tensor cores, which multiply matrices of 16x16 numbers in half precision.

The convolution becomes a product of matrices: rows are output pixels p of all images, columns output channels k, and
terms t are taps and input channels. With channels last in memory, (N, H, W, C) and (K, R, S, C), neighbouring terms are
neighbours in memory, and both factors are copied in vectors of 8 numbers:

    columns (p, t)      weights (k, t)          product (p, k)
    +----+----+--       +----+----+--           +----+----+--   16 x 16 each: one "mma" of a warp,
    |    |    |     x   |    |    |     -->     |    |    |     sums in float32
    +----+----+--       +----+----+--           +----+----+--

"columns" is no array in memory: it is made chunk by chunk in shared memory, padding with it, for 64 terms of one tap.

Beside level 4: what computes is a warp, not a thread, so the loops of a 16x16x16 product are made a block (`blockize`)
that `tensorize` replaces by an instruction. Its factors and sums are in the scope "warp": registers that 32 threads
have between them, in the order that the instruction wants (`transform_layout`). Thread r * 4 + q has of a matrix the
columns 2q and 2q + 1, and 8 further, of row r and of row r + 8.

Look at: `tensorize` compares the block with the description of the intrinsic (tvm/s_tir/tensor_intrin/cuda.py), so an
instruction that does not fit is an error, not a wrong result. Without its four lines the schedule is right, too: that
is what a CPU checks.
"""

from __future__ import annotations

from functools import partial

from common import FLOAT16, SMALL16, Level
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.tensor_intrin.cuda import shared_16x16_to_ldmatrix_32x8_layout

from tvmconv import ConvWorkload

WARPS_M, WARPS_N, WARP = 2, 2, 32
TILES_M, TILES_N = 4, 2
CHUNK, VECTOR = 64, 8


def product(workload: ConvWorkload) -> list[te.Tensor]:
    """Return the convolution as a product of matrices, whose output has all pixels in one row: (1, 1, N * H * W, K)."""
    (batch, height, width, channels), filters = workload.x_shape, workload.out_channels
    pixels, terms = batch * height * width, 9 * channels
    x = te.placeholder(workload.x_shape, "float16", name="x")
    w = te.placeholder(workload.w_shape, "float16", name="w")

    def column(p: tirx.Var, t: tirx.Var) -> tirx.PrimExpr:
        row, col = p // width % height + t // channels // 3 - 1, p % width + t // channels % 3 - 1
        inside = tirx.all(row >= 0, row < height, col >= 0, col < width)
        return tirx.if_then_else(inside, x[p // width // height, row, col, t % channels], tirx.const(0, "float16"))

    columns = te.compute((pixels, terms), column, name="columns")
    weights = te.compute(
        (filters, terms), lambda k, t: w[k, t // channels // 3, t // channels % 3, t % channels], name="weights"
    )
    t = te.reduce_axis((0, terms), name="t")
    sums = te.compute(
        (pixels, filters),
        lambda p, k: te.sum(columns[p, t].astype("float32") * weights[k, t].astype("float32"), axis=t),
        name="sums",
    )
    return [x, w, te.compute((1, 1, *sums.shape), lambda a, b, p, k: sums[p, k].astype("float16"), name="output")]


def schedule(workload: ConvWorkload, tensorized: bool = True) -> Schedule:
    """Schedule the product, for pixels in multiples of 128 and channels of 64; with tensor cores, or as plain loops."""
    sch = Schedule(te.create_prim_func(product(workload)))
    columns, weights, sums, output = (sch.get_sblock(name) for name in ("columns", "weights", "sums", "output"))

    # Step 1. Make the product of two 16x16 matrices a block, and tile what is around it: blocks, warps, chunks, steps
    loops = [sch.split(loop, [None, 16]) for loop in sch.get_loops(sums)]
    (p, k, t), inner = ([each[place] for each in loops] for place in (0, 1))
    sch.reorder(p, k, t, *inner)
    matrices = sch.blockize(inner[0])
    bm, wm, im = sch.split(p, [None, WARPS_M, TILES_M])
    bn, wn, jn = sch.split(k, [None, WARPS_N, TILES_N])
    chunk, step = sch.split(t, [None, CHUNK // 16])
    sch.reorder(bm, bn, wm, wn, chunk, step, im, jn)
    sch.bind(sch.fuse(bm, bn), "blockIdx.x")
    warp = sch.fuse(wm, wn)
    sch.bind(warp, "threadIdx.y")

    # Step 2. Copy chunks to shared memory, in vectors; rows are 8 numbers longer, so that they begin in other banks
    for stage in (columns, weights):
        sch.set_scope(stage, 0, "shared")
        sch.compute_at(stage, chunk)
        vectors = sch.fuse(*sch.get_loops(stage)[-2:])
        _, copying, lane, vector = sch.split(vectors, [None, WARPS_M * WARPS_N, WARP, VECTOR])
        sch.bind(copying, "threadIdx.y")
        sch.bind(lane, "threadIdx.x")
        sch.vectorize(vector)
        sch.storage_align(stage, 0, axis=-2, factor=CHUNK, offset=VECTOR)

    # Step 3. Factors and sums are in the registers of a warp; its threads store the outputs that they have
    fragments = [sch.cache_read(matrices, operand, "warp") for operand in (0, 1)]
    for fragment in fragments:
        sch.compute_at(fragment, step)
    sch.set_scope(sums, 0, "warp")
    sch.reverse_compute_at(output, warp)
    i, j = sch.get_loops(output)[-2:]
    i, h, r = sch.split(i, [None, 2, 8])
    j, side, q, e = sch.split(j, [None, 2, 4, 2])
    sch.reorder(r, q, i, j, side, h, e)
    sch.bind(sch.fuse(r, q), "threadIdx.x")
    init = sch.decompose_reduction(matrices, chunk)

    # Step 4. Put the instructions in
    layout = lambda i, j: (i // 16, j // 16, *shared_16x16_to_ldmatrix_32x8_layout(i % 16, j % 16))  # noqa: E731
    for block in (*fragments, sums):
        sch.transform_layout(block, ("write", 0), layout)
    if tensorized:
        for fragment, name in zip(fragments, ("mma_ldmatrix_f16_a", "mma_ldmatrix_f16_b_trans"), strict=True):
            (i, ii), (j, ji) = (sch.split(loop, [None, 16]) for loop in sch.get_loops(fragment)[-2:])
            sch.reorder(i, j, ii, ji)
            sch.tensorize(ii, name)
        sch.tensorize(sch.get_loops(sch.get_child_blocks(init)[0])[-2], "mma_fill_16x16_f32")
        sch.tensorize(sch.get_loops(sums)[-3], "mma_f16f16f32_trans_b")
    return sch


LEVEL = Level(5, "tensor cores", FLOAT16, SMALL16, schedule, partial(schedule, tensorized=False))

if __name__ == "__main__":
    LEVEL.run()
