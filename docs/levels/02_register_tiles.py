"""Level 2: blocks of threads, and a tile of outputs in the registers of each thread.

A block computes a tile of 64 channels by 4 rows by 28 columns; its 224 threads lie 8 along the channels, 4 along the
rows and 7 along the columns. A thread has 8 channels by 4 columns of it, 32 sums, in registers:

    a block's tile, 64 channels        a thread's tile
    +--+--+--+--+--+--+--+             columns  0 1 2 3
    |  |  |  |  |  |  |  | row 0       k = 0    . . . .
    +--+--+--+--+--+--+--+             k = 1    . . . .
    |  |  |##|  |  |  |  | row 1       ...
    +--+--+--+--+--+--+--+             k = 7    . . . .

Beside level 1: `cache_write` puts the sums into a "local" buffer, which is registers, and `compute_at` moves them into
the loop of threads. "pad" is a stage in registers, too: the 3 rows of 6 pixels that the thread's outputs read of one
channel, each tested against the edges once. With 8 x 9 weights they serve 288 multiply-adds: 0.31 loads for each, where
level 1 has 2. The loops inside are unrolled, since registers have no addresses that a program could compute.

Look at: `reorder(c, r, s, k, y, x)` puts the terms outside of the tile, so that a number that is loaded for one term is
used 4 or 8 times at once. All loads go to global memory, by way of the L1 cache.
"""

from __future__ import annotations

from common import FLOAT32, SMALL32, Level, convolution
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload

THREADS_K, THREADS_Y, THREADS_X = 8, 4, 7
THREAD_K, THREAD_X = 8, 4


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the convolution; channels, rows and columns have to be multiples of a block's: 64, 4 and 28."""
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

    # Step 3. Sum up inside a thread, channel after channel, with its pixels in registers
    sch.compute_at(sums, thread, preserve_unit_loops=True)
    *_, k, y, x, c, r, s = sch.get_loops(sums)
    sch.reorder(c, r, s, k, y, x)
    sch.set_scope(pad, 0, "local")
    sch.compute_at(pad, c, preserve_unit_loops=True)
    init = sch.decompose_reduction(sums, c)
    for loop in (r, s, k, y, x, *sch.get_loops(init)[-3:], *sch.get_loops(pad)[-2:]):
        sch.unroll(loop)
    return sch


LEVEL = Level(2, "register tiles", FLOAT32, SMALL32, schedule)

if __name__ == "__main__":
    LEVEL.run()
