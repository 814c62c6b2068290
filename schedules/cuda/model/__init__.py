"""The clocks of a kernel on a GPU, told by counts of its work: one model for all templates that count.

A multiprocessor has four units: its warps begin instructions, shared memory is accessed, tensor cores multiply, and
bytes come from the L2 cache. Resident blocks share these units. Their warps are divided among the multiprocessor's
quarters, and those of the quarter with the most warps take longest to begin instructions. A block takes at least the
time for which its threads wait for memory and for preceding instructions. Memory bounds the whole kernel. The p-norm
combines these bounds, and launches are added.

A GPU's rates, and two factors for each template, are fitted to measured kernels (`rates`). They absorb what counts
have in common, and are not exact properties of the hardware. The number of multiprocessors, and the bytes
that memory moves in a clock, are those of the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import tvm

from tvmconv.problem import Workload
from tvmconv.targets.devices import WARP, Gpu, gpu_of

from ...fitted import Factors, p_norm
from ...space import ceil_div, wasted
from ..machine import QUARTERS, SECTOR
from .rates import Rates

RUN = 20.0
"""The fixed cost of a run of neighbouring bytes, as the number of bytes that memory moves in the same time."""


@dataclass(frozen=True)
class Counts:
    """The work of a main kernel, and of the kernels that run before and after it."""

    blocks: int
    """The blocks of the grid."""
    resident: int
    """The blocks that a multiprocessor has room for."""
    warps: int
    """The warps of a block."""
    issued: float
    """The instructions that a warp executes."""
    moved: float
    """The bytes that memory reads and writes, of all blocks; 0 where the L2 cache holds the operands."""
    fetched: float = 0.0
    """The bytes that a block reads and writes by way of the L2 cache."""
    accessed: float = 0.0
    """The accesses of a block's warps to shared memory, or to the L1 cache, of 128 bytes each."""
    multiplied: float = 0.0
    """The clocks of tensor cores for a block, at the rate of the data sheet."""
    arrivals: float = 1.0
    """The times that a thread waits for memory."""
    serial: float = 0.0
    """The instructions of a thread that each wait for the preceding one, and clocks in which it waits for anything but
    loads: an instruction that waits takes about a clock of the busiest quarter (`Rates.turn`)."""
    kernels: int = 1
    """The number of kernels, with those that lay out operands first or add up sums in the end."""
    beside: float = 0.0
    """The bytes that the other kernels read and write."""


def clocks(counts: Counts, gpu: Gpu, rates: Rates, factors: Factors) -> float:
    """Return the clocks that a call of the kernels takes.

    All numbers of counts, rates and factors may also be arrays of NumPy, as they are in a fit.
    """
    share = ceil_div(counts.blocks, gpu.multiprocessors)
    together = (counts.resident + share - abs(counts.resident - share)) / 2  # the lesser one, of arrays too
    # The warps that a block would have if all quarters had as many as the one with the most.
    busiest = -(-together * counts.warps // QUARTERS) * QUARTERS / together
    units = p_norm(
        rates.power,
        factors.issued * counts.issued * busiest / rates.issue,
        counts.accessed * rates.access,
        counts.multiplied * rates.mma,
        counts.fetched / rates.l2,
    )
    waiting = factors.waiting * (counts.arrivals * rates.latency + counts.serial * rates.turn)
    turn = p_norm(rates.power, together * units, waiting)
    computing = share / together * turn + share * rates.block
    launches = rates.launch + (counts.kernels - 1) * rates.further + counts.beside / gpu.bytes_per_clock
    return launches + p_norm(rates.power, computing, counts.moved / gpu.bytes_per_clock)


def memory_bytes(workload: Workload, target: tvm.target.Target) -> float:
    """Return the bytes that memory moves for a workload: 0 where the GPU's L2 cache holds its operands."""
    return 0.0 if workload.bytes_moved <= gpu_of(target).l2_room else float(workload.bytes_moved)


def in_runs(run: int) -> float:
    """Return the cost of moving bytes in runs of `run` neighbouring bytes, as a multiple of their cost in long runs."""
    return wasted(run, SECTOR) * (1 + RUN / run)


Axes = tuple[int, int, int]
"""Numbers along z, y and x."""


@lru_cache(maxsize=4096)  # asked for each of thousands of configurations
def first_warp(threads: Axes, steps: Axes) -> tuple[int, ...]:
    """Return the offsets of what the threads of a block's first warp access, where neighbours are `steps` apart."""
    _, threads_y, threads_x = threads
    z, y, x = steps
    return tuple(
        thread // (threads_x * threads_y) * z + thread // threads_x % threads_y * y + thread % threads_x * x
        for thread in range(min(WARP, prod(threads)))
    )


def touched(threads: Axes, steps: Axes, nbytes: int, unit: int) -> int:
    """Return the units of `unit` bytes that a block's first warp touches as each of its threads accesses `nbytes`.

    Neighbouring threads access bytes that are `steps` apart.
    """
    first = first_warp(threads, steps)
    return len({number for byte in first for number in range(byte // unit, (byte + nbytes - 1) // unit + 1)})
