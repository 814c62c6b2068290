"""Level 3: the threads of a block fetch together what all of them read, into shared memory.

The sum goes chunk by chunk: 8 input channels at a time. For each chunk the block copies its pixels, with the rows and
columns around the tile that the taps reach, and its weights; then all threads multiply from there:

    for chunk in 8:                                   global            shared memory
        copy 8 x 6 x 30 pixels      x (padded)    --------------->  pad     8 x 6 x 32
        copy 64 x 8 x 3 x 3 weights w             --------------->  weight  8 x 3 x 3 x 68
        wait for all threads
        for c in 8, r, s:  multiply
        wait for all threads

Beside level 2: "pad" moves from registers to shared memory, and the weight gets a stage, too, by `cache_read`. What a
block reads it fetches once, not once for each thread. The loops of a copy are fused and dealt out, element i to thread
i % 224, whatever tile of the output a thread has. TVM puts the barriers between.

Look at: the layout in shared memory, which is not that in global memory. `transform_layout` puts the channels of a
weight last, so that a thread reads its 8 as two vectors. `storage_align` makes rows a little longer: vectors are then
aligned, and what a warp stores of the weight goes to 8 banks, not to a single one. The CUDA source, which
`cuda.sources` returns, has two `__syncthreads()` in the loop.
"""

from __future__ import annotations

from common import FLOAT32, SMALL32, Level, convolution
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload

THREADS_K, THREADS_Y, THREADS_X = 8, 4, 7
THREAD_K, THREAD_X = 8, 4
BLOCK_C = 8


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the convolution; see level 2 for its sizes, and input channels come in multiples of 8."""
    sch = Schedule(te.create_prim_func(convolution(workload)))
    pad, sums = sch.get_sblock("pad"), sch.get_sblock("output")

    # Step 1. Sums are in registers; another stage, "output", stores them
    output = sch.cache_write(sums, 0, "local")

    # Step 2. Tile the output: blocks, threads, then what a thread owns
    n, k, y, x = sch.get_loops(output)
    bk, tk, ki = sch.split(k, [None, THREADS_K, THREAD_K])
    by, ty = sch.split(y, [None, THREADS_Y])
    bx, tx, xi = sch.split(x, [None, THREADS_X, THREAD_X])
    sch.reorder(n, by, bx, bk, tk, ty, tx, ki, xi)
    sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")
    thread = sch.fuse(tk, ty, tx)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(ki)
    sch.vectorize(xi)

    # Step 3. Sum up inside a thread, chunk by chunk
    sch.compute_at(sums, thread, preserve_unit_loops=True)
    *_, k, y, x, c, r, s = sch.get_loops(sums)
    chunk, ci = sch.split(c, [None, BLOCK_C])
    sch.reorder(chunk, ci, r, s, k, y, x)

    # Step 4. Copy each chunk to shared memory first
    weight = sch.cache_read(sums, 1, "shared")
    sch.transform_layout(weight, ("write", 0), lambda k, c, r, s: (c, r, s, k))
    sch.storage_align(weight, 0, axis=-2, factor=32, offset=4)
    sch.set_scope(pad, 0, "shared")
    sch.storage_align(pad, 0, axis=-2, factor=4, offset=0)
    for stage in (pad, weight):
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
        _, copying = sch.split(sch.fuse(*sch.get_loops(stage)[-4:]), [None, THREADS_K * THREADS_Y * THREADS_X])
        sch.bind(copying, "threadIdx.x")

    init = sch.decompose_reduction(sums, chunk)
    for loop in (r, s, k, y, x, *sch.get_loops(init)[-3:]):
        sch.unroll(loop)
    return sch


LEVEL = Level(3, "shared memory", FLOAT32, SMALL32, schedule)

if __name__ == "__main__":
    LEVEL.run()
