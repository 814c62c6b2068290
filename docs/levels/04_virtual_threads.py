"""Level 4: virtual threads, which give a thread several tiles that lie apart.

A thread of level 3 with twice the channels and rows would have 16 neighbouring channels, and the vectors that threads
read at once would lie 16 numbers apart. A virtual thread is a strided part of the block's tile, and a thread works in
all of them, one after the other, with the registers of all:

    64 channels of a block      | virtual thread 0              | virtual thread 1              |
    vectors of 4 channels       | t0 | t1 | t2 | ... | t6 | t7  | t0 | t1 | t2 | ... | t6 | t7  |

and likewise rows 0 to 3 and 4 to 7. A thread has 2 x 4 channels by 2 x 1 rows by 4 columns, 64 sums, twice those of
level 3: 0.19 loads for each multiply-add instead of 0.31, as the same weights serve two rows. The vectors of threads
that are neighbours along the channels are neighbours in shared memory, in different banks.

Beside level 3: two loops that are bound to "vthread.y" and "vthread.x", outside of the threads. They are no threads of
the GPU: TVM writes their code into the thread, each statement for all virtual threads, so that independent
multiply-adds follow each other and the wait for one is spent on the others.

Look at: registers, of which a multiprocessor has 65536. With 224 threads of some 130 registers two blocks fit; four
times the sums would spill (`tvmconv.targets.cuda.kernel_resources` says so without a GPU).
"""

from __future__ import annotations

from common import FLOAT32, SMALL32, Level, convolution
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload

VTHREADS_K, THREADS_K, THREAD_K = 2, 8, 4
VTHREADS_Y, THREADS_Y = 2, 4
THREADS_X, THREAD_X = 7, 4
BLOCK_C = 8


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the convolution, for channels in multiples of 64 and 8, rows of 8 and columns of 28."""
    sch = Schedule(te.create_prim_func(convolution(workload)))
    pad, sums = sch.get_sblock("pad"), sch.get_sblock("output")

    # Step 1. Sums are in registers; another stage, "output", stores them
    output = sch.cache_write(sums, 0, "local")

    # Step 2. Tile the output: blocks, virtual threads (strided), threads, then what a thread owns
    n, k, y, x = sch.get_loops(output)
    bk, vk, tk, ki = sch.split(k, [None, VTHREADS_K, THREADS_K, THREAD_K])
    by, vy, ty = sch.split(y, [None, VTHREADS_Y, THREADS_Y])
    bx, tx, xi = sch.split(x, [None, THREADS_X, THREAD_X])
    sch.reorder(n, by, bx, bk, vk, vy, tk, ty, tx, ki, xi)
    sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")
    sch.bind(vk, "vthread.y")
    sch.bind(vy, "vthread.x")
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


LEVEL = Level(4, "virtual threads", FLOAT32, SMALL32, schedule)

if __name__ == "__main__":
    LEVEL.run()
