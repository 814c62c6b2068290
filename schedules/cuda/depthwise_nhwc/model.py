"""A model of the time of depthwise convolutions in NHWC on CUDA."""

from __future__ import annotations

from math import hypot, prod

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu

from ...space import ceil_div, ceil_to, wasted
from ..machine import SECTOR
from ..simt.model import START, bytes_per_clock
from ..template import resident_blocks
from .tiles import Config, blocks, products, read, registers, shared_bytes, whole

LOAD, EDGE, STORE, TAP, FINISH, THREAD = 1.2, 10.0, 1.2, 5.5, 1.0, 50.0
"""The issue slots of a load of a vector of the input; of the address and the tests of one that may lie beyond an edge;
of a store; of staging a tap; of an output's epilogue; and of a thread for itself. They were counted in machine code for
sm_90, but for the second, which was fitted with what follows to some 200 configurations of 24 layers on an H200. Clocks
are as many too many as those of `depthwise_model`: both count on the memory of an H100."""

ISSUED, ACCESS = 3.4, 2.8
"""The instructions of warps that a multiprocessor issues in a clock, and the clocks of a warp's access to 128 bytes."""

CODE, LONG_CODE = 4096, 1.6
"""The instructions that caches of code hold, and how many times as long those beyond take."""

WAIT, ROW_WAIT = 290.0, 150.0
"""The clocks that a thread waits for memory, for its taps and for its input, and for each further row of that."""

CACHED, RUN = 0.5, 20
"""The time that moving bytes takes which stay in the L2 cache, as a share of that for memory; and the bytes that each
run of neighbouring ones costs in addition."""

FETCHED = 5.0
"""The bytes that a multiprocessor fetches in a clock of those that lie in the windows of several blocks, but for the
first time. It was fitted to 130 configurations of seven layers on an H200: a 7x7 layer took 80 µs by blocks that read
four times what is theirs, and 35 by blocks of whole planes."""

SCHEDULERS = 4
"""The warps of which a multiprocessor can issue instructions at once."""

FEW_REGISTERS = 30
"""The registers of a thread's addresses and tests."""


def clocks(workload: ConvWorkload, config: Config, gpu: Gpu, is_open: bool) -> float:
    """Return the clocks of the busiest multiprocessor, wave by wave of blocks.

    In each it issues instructions, accesses its caches, moves its share of what memory moves, fetches again what other
    blocks read too, and waits.
    """
    grid, warps = blocks(workload, config), ceil_div(config.threads, WARP)
    share = ceil_div(grid, gpu.multiprocessors)
    resident = resident_blocks(gpu, config.threads, registers_of(workload, config), shared_bytes(workload, config))
    together = min(share, resident)
    run = config.channels * workload.itemsize
    surplus = wasted(run, SECTOR) * (1 + RUN / run) * (CACHED if workload.bytes_moved <= gpu.l2_room else 1)
    moved = surplus * workload.bytes_moved / grid / (bytes_per_clock(gpu) / gpu.multiprocessors)
    issued = warps * slots(workload, config, is_open) / ISSUED
    accesses = prod(read(workload, config)) + config.thread_y * config.thread_x
    accessed = warps * accesses * max(1, config.vector * workload.itemsize / 4) * ACCESS
    busy = hypot(issued, accessed, moved, max(run, SECTOR) * read_again(workload, config) / FETCHED)
    rows = 0 if config.ahead else read(workload, config)[0]
    alone = WAIT + ROW_WAIT * rows + issued * max(1, SCHEDULERS / warps)
    waves = ceil_div(share, together)
    last = share - (waves - 1) * together
    return START + (waves - 1) * hypot(together * busy, alone) + hypot(last * busy, alone)


def read_again(workload: ConvWorkload, config: Config) -> int:
    """Return the pixels that a block reads beyond those under its own outputs."""
    block, size = (config.block_y, config.block_x), (workload.height, workload.width)
    window = prod(map(min, workload.read_by(block), size))
    own = prod(min(count * stride, most) for count, stride, most in zip(block, workload.stride, size, strict=True))
    return max(0, window - own)


def slots(workload: ConvWorkload, config: Config, is_open: bool) -> float:
    """Return the instructions of a thread, with those counted several times that caches of code do not hold."""
    taps, loads = prod(workload.kernel), prod(read(workload, config))
    converted = config.vector * (workload.dtype != workload.storage.sums)
    loaded = loads * (LOAD + converted) + edges(workload, config, is_open) * (EDGE + config.vector)
    staged = taps * config.vector / (config.threads_y * config.threads_x)
    stored = config.thread_y * config.thread_x * STORE
    found = THREAD + products(workload, config) + FINISH * config.outputs + loaded + taps + TAP * staged + stored
    return found + LONG_CODE * max(0.0, found - CODE)


def edges(workload: ConvWorkload, config: Config, is_open: bool) -> int:
    """Return the vectors of a thread's input that may lie beyond an edge; all may where no tile ends at it."""
    top, left, bottom, right = workload.padding
    tiles = zip(workload.output_size, (config.block_y, config.block_x), strict=True)
    sizes = zip(read(workload, config), tiles, (top + bottom, left + right), whole(workload, config), strict=True)
    inside = [
        size if is_whole else 0 if is_open or output % block else max(0, size - pads)
        for size, (output, block), pads, is_whole in sizes
    ]
    return prod(read(workload, config)) - prod(inside)


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers that a thread takes: eights, for its numbers, addresses and tests."""
    return ceil_to(FEW_REGISTERS + registers(workload, config), 8)
