"""Level 6: the next chunks are copied while one is multiplied.

An asynchronous copy (`cp.async`, from sm_80 on) goes from global to shared memory without registers, and a thread that
has begun one goes on. Shared memory has room for 3 chunks, a ring: one is multiplied while two are on their way.

    chunk      0      1      2      3      4
    copy       [=========]
                   [=========]
                          [=========]              ring   | 0, 3, .. | 1, 4, .. | 2, 5, .. |
    multiply              [ 0  ] [ 1  ] [ 2  ]

Beside level 5: two more annotations, of this library (`tvmconv/lowering/gpu/intrinsics.py`), and its own function for
the product. Tests run these functions in an emulator of GPUs (`tests/emulated`), a CPU runs the loops:

    COPY      a block that copies 16 bytes     tvmconv::copy<16>, zeros where the condition does not hold
    PRODUCT   the product of two chunks        tvmconv::mma_product, in schedules/cuda/tensor/mma.cuh
    RING      the loop over chunks             commit, wait and one barrier for each chunk, in a ring of buffers

The one barrier says that a chunk is there for all threads, and that all have done with the one before, whose buffer
the copy that now begins may take.

Look at: rows are 64 numbers apart again, 128 bytes, all 32 banks. `True` of COPY permutes the eight vectors of a row,
vector v of row r to index v ^ (r % 8), so that `ldmatrix` reads 8 rows at once from different banks.
"""

from __future__ import annotations

from common import FLOAT16, SMALL16, THREADS, TILES_M, TILES_N, Level, product
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload
from tvmconv.compute.annotations import COPY, PRODUCT, RING
from tvmconv.targets.device_code import function, included

AHEAD = 2
"""The chunks that are copied while one is multiplied."""


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
