"""The time of depthwise convolutions on tensor cores, by a model."""

from __future__ import annotations

import tvm

from tvmconv.compute.depthwise.bands import VECTOR_BYTES, in_planes, lanes, lines_read
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import KERNEL, WARP, gpu_of

from ...space import ceil_div
from ..machine import PRODUCTS
from ..tensor.model import mostly_largest, saved_launch
from ..tensor.tiles import tf32_products
from .tiles import Config, blocks, products, taps_bytes, taps_rows

ISSUED = 3.0
"""The instructions that a multiprocessor's warps begin in a clock, of four at best.

This and the numbers below without another source are those of `cuda/grouped`, whose blocks work alike.
"""

TURN = 4.5
"""The clocks from one instruction of a warp to its next where no other warps fill the time."""

COPYING, STORING, BEGINNING = 12.0, 8.0, 80.0
"""The instructions of a thread for an asynchronous copy and for a sum that it stores, and those that it begins with."""

ACCESS = 1.7
"""The clocks of 128 bytes that a warp reads from shared memory, or copies to it from one line of the L2 cache."""

LATENCY = 3500.0
"""The clocks of a block beside its instructions, most of which it waits for its copies."""

CAUTION = 1.6
"""The factor of the estimate: that of `cuda/depthwise` is as much too high where memory bounds it, and is compared."""


def clocks(problem: Problem, config: Config, target: tvm.target.Target, resident: int) -> float:
    """Return the clocks that the kernel should take, where a multiprocessor has room for `resident` blocks.

    As for `cuda/tensor`, three things bound it: the units of the busiest multiprocessor, the blocks that have to wait
    for one another, and the memory.
    """
    workload, gpu = in_planes(problem.workload), gpu_of(target)
    turns = ceil_div(blocks(workload, config), gpu.multiprocessors)
    together = min(turns, resident)
    spans = [taps_rows(workload, config, warp) for warp in range(config.warps_y)]
    rows = sum(max(0, last - first) for first, last in spans) * config.channels
    longest = max(last - first for first, last in spans)
    pairs = products(workload, config)
    columns, matrices = len({block for *_, block in pairs}), 4 * len({step for _, step, _ in pairs})
    parts = max(1, tf32_products(problem))
    taken_apart = 0 if workload.dtype in NARROW else 3 * (parts - 1) + 1  # instructions for each factor
    of_row = config.images * (parts * len(pairs) + columns * (0.5 + 2 * taken_apart) + 3)
    of_row += matrices * (1 + taken_apart) + 6
    copies, taps = copied(workload, config)
    others = BEGINNING + (copies + taps) * COPYING + config.sums * STORING
    warps = config.threads // WARP
    issued = rows * of_row + warps * others
    accesses = rows * (matrices + 2 * columns * config.images) + warps * (4 * (copies + taps) + config.sums)
    multiplied = rows * config.images * len(pairs) * parts * PRODUCTS / tensor_instructions(target)["mma"].products
    units = turns * mostly_largest(issued / ISSUED, accesses * ACCESS, multiplied)
    waiting = ceil_div(turns, together) * (LATENCY + TURN * (longest * of_row + others))
    launches = 2 * KERNEL - saved_launch(problem)
    return CAUTION * (mostly_largest(units, waiting, workload.bytes_moved / gpu.bytes_per_clock) + launches)


def copied(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the vectors of the input that a thread copies, and those of taps."""
    rows, columns = lines_read(workload, config.tile)
    lines = config.images * len(rows) * len(columns) / lanes(workload)
    taps = workload.kernel[0] * taps_bytes(workload) / VECTOR_BYTES
    return lines * config.channels / config.threads, taps * config.channels / config.threads
