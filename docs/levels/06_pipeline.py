"""Level 6: the next chunks are copied while one is multiplied.

An asynchronous copy (`cp.async`, from sm_80 on) goes from global to shared memory without registers, and a thread that
has begun one goes on. Shared memory has room for 3 chunks, a ring: one is multiplied while two are on their way.

    chunk      0      1      2      3      4
    copy       [=========]
                   [=========]
                          [=========]              ring   | 0, 3, .. | 1, 4, .. | 2, 5, .. |
    multiply              [ 0  ] [ 1  ] [ 2  ]

Beside level 5: the schedule is complete as plain loops, with the registers of each thread as axes of the definition,
(r, q) for the thread and (i, j, h, e) inside it, and annotations say which CUDA functions replace blocks of it. That is
the way of this library (`tvmconv/lowering/gpu/intrinsics.py`); a CPU runs the loops, and tests run the functions in an
emulator (`tests/emulated`):

    COPY      a block that copies 16 bytes     tvmconv::copy<16>, zeros where the condition does not hold
    PRODUCT   the product of two chunks        tvmconv::mma_product, in schedules/cuda/tensor/mma.cuh
    RING      the loop over chunks             commit, wait and one barrier for each chunk, in a ring of buffers

Look at: a row of a chunk has 128 bytes, all 32 banks. `True` of COPY permutes its eight vectors, vector v of row r to
index v ^ (r % 8), so that 8 rows can be read at once without padding between them.
"""

from __future__ import annotations

from common import FLOAT16, SMALL16, Level
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload
from tvmconv.compute.annotations import COPY, PRODUCT, RING
from tvmconv.targets.device_code import function, included

WARPS_M, WARPS_N, TILES_M, TILES_N, AHEAD = 2, 2, 4, 4, 2
BLOCK_M, BLOCK_N, THREADS = WARPS_M * TILES_M * 16, WARPS_N * TILES_N * 8, WARPS_M * WARPS_N * 32
CHUNK, VECTORS, LANES = 64, 8, 8


def product(workload: ConvWorkload) -> list[te.Tensor]:
    """Return the product of level 5 in tiles of a block, chunks of 64 channels of a tap, and registers of a thread."""
    (batch, height, width, channels), filters = workload.x_shape, workload.out_channels
    pixels, per_tap = batch * height * width, channels // CHUNK
    tiles, chunks = (pixels // BLOCK_M, filters // BLOCK_N), 9 * per_tap
    x = te.placeholder(workload.x_shape, "float16", name="x")
    w = te.placeholder(workload.w_shape, "float16", name="w")

    def column(*axes: tirx.Var) -> tirx.PrimExpr:
        tile, chunk, wm, i, h, r, copy, lane = axes
        p = tile * BLOCK_M + ((wm * TILES_M + i) * 2 + h) * 8 + r
        tap, c = chunk // per_tap, chunk % per_tap * CHUNK + copy * LANES + lane
        row, col = p // width % height + tap // 3 - 1, p % width + tap % 3 - 1
        inside = tirx.all(row >= 0, row < height, col >= 0, col < width)
        return tirx.if_then_else(inside, x[p // width // height, row, col, c], tirx.const(0, "float16"))

    def weight(*axes: tirx.Var) -> tirx.PrimExpr:
        tile, chunk, wn, j, r, copy, lane = axes
        tap, c = chunk // per_tap, chunk % per_tap * CHUNK + copy * LANES + lane
        return w[tile * BLOCK_N + (wn * TILES_N + j) * 8 + r, tap // 3, tap % 3, c]

    columns = te.compute((tiles[0], chunks, WARPS_M, TILES_M, 2, 8, VECTORS, LANES), column, name="columns")
    weights = te.compute((tiles[1], chunks, WARPS_N, TILES_N, 8, VECTORS, LANES), weight, name="weights")
    extents = {"chunk": chunks, "copy": VECTORS, "lane": LANES}
    chunk, copy, lane = (te.reduce_axis((0, extent), name=name) for name, extent in extents.items())

    def summed(*axes: tirx.Var) -> tirx.PrimExpr:
        pt, kt, wm, wn, r, q, i, j, h, e = axes
        first, second = columns[pt, chunk, wm, i, h, r, copy, lane], weights[kt, chunk, wn, j, q * 2 + e, copy, lane]
        return te.sum(first.astype("float32") * second.astype("float32"), axis=[chunk, copy, lane])

    sums = te.compute((*tiles, WARPS_M, WARPS_N, 8, 4, TILES_M, TILES_N, 2, 2), summed, name="sums")

    def rounded(*axes: tirx.Var) -> tirx.PrimExpr:
        pt, kt, wm, i, h, r, wn, j, q, e = axes
        return sums[pt, kt, wm, wn, r, q, i, j, h, e].astype("float16")

    tile = te.compute((*tiles, WARPS_M, TILES_M, 2, 8, WARPS_N, TILES_N, 4, 2), rounded, name="tile")

    def stored(a: tirx.Var, b: tirx.Var, p: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        row = (p % BLOCK_M // (TILES_M * 16), p // 16 % TILES_M, p // 8 % 2, p % 8)
        column = (k % BLOCK_N // (TILES_N * 8), k // 8 % TILES_N, k // 2 % 4, k % 2)
        return tile[(p // BLOCK_M, k // BLOCK_N, *row, *column)]

    return [x, w, te.compute((1, 1, pixels, filters), stored, name="output")]


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the product, for pixels in multiples of 128 and channels of 64."""
    sch = Schedule(te.create_prim_func(product(workload)))
    columns, weights, sums, tile = (sch.get_sblock(name) for name in ("columns", "weights", "sums", "tile"))

    # Step 1. Blocks, threads, and what a thread stores: pairs of neighbouring channels
    pt, kt, wm, i, h, r, wn, j, q, e = sch.get_loops(tile)
    sch.reorder(pt, kt, wm, wn, r, q, i, j, h, e)
    sch.bind(sch.fuse(pt, kt), "blockIdx.x")
    thread = sch.fuse(wm, wn, r, q)
    sch.bind(thread, "threadIdx.x")
    for loop in (i, j, h):
        sch.unroll(loop)
    sch.vectorize(e)

    # Step 2. Sum up in registers, chunk by chunk
    sch.compute_at(sums, thread, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    *_, i, j, h, e, chunk, copy, lane = sch.get_loops(sums)
    sch.reorder(chunk, copy, i, j, h, e, lane)

    # Step 3. Copy chunks to shared memory: a vector of 16 bytes for each thread at a time
    for stage in (columns, weights):
        sch.set_scope(stage, 0, "shared.dyn")
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
        *loops, vector = sch.get_loops(stage)[-len(sch.get(stage).iter_vars) :]
        _, copying = sch.split(sch.fuse(*loops), [None, THREADS])
        sch.bind(copying, "threadIdx.x")
        sch.annotate(sch.blockize(vector), COPY, True)

    # Step 4. Name the functions
    init = sch.decompose_reduction(sums, chunk)
    for loop in sch.get_loops(init)[-4:]:
        sch.unroll(loop)
    name = function("mma_product", "F16", 0, TILES_M, TILES_N)
    sch.annotate(sch.blockize(copy), PRODUCT, [name, included("schedules/cuda/tensor/mma.cuh")])
    sch.annotate(chunk, RING, [AHEAD, 0, 0])
    sch.reverse_compute_inline(sch.get_sblock("output"))
    return sch


LEVEL = Level(6, "a pipeline of asynchronous copies", FLOAT16, SMALL16, schedule)

if __name__ == "__main__":
    LEVEL.run()
