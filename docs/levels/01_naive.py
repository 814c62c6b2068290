"""Level 1: one thread for each output.

A convolution of 64 input channels c, 64 output channels k and 3x3 taps (r, s):

    output[n, k, y, x] = sum over c, r, s of pad[n, c, y + r, x + s] * w[k, c, r, s]

The definition (`convolution` in common.py) says only that. The schedule says how: all outputs are numbered in one row,
256 neighbours of it are the threads of a block, and a thread sums up the 64 * 3 * 3 = 576 terms of its output.

    outputs   | 0 1 2 ... 255 | 256 257 ... 511 | ...
                block 0         block 1

"pad" is inlined: it is no array in memory but a test at each load, whether the tap is inside the image.

Look at: each multiply-add loads two numbers. Neighbouring threads load neighbouring pixels, which is what the memory of
a GPU is good at, and the same weight; but nothing that a thread has loaded is used for a second output.
"""

from __future__ import annotations

from common import FLOAT32, SMALL32, Level, convolution
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload

THREADS = 256


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the convolution; the number of outputs has to be a multiple of the threads of a block."""
    sch = Schedule(te.create_prim_func(convolution(workload)))
    sch.compute_inline(sch.get_sblock("pad"))
    n, k, y, x, *_ = sch.get_loops(sch.get_sblock("output"))
    block, thread = sch.split(sch.fuse(n, k, y, x), [None, THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


LEVEL = Level(1, "one thread for each output", FLOAT32, SMALL32, schedule)

if __name__ == "__main__":
    LEVEL.run()
