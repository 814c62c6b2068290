"""The clocks of a kernel on a CPU, told by counts of its work: one model for all templates that count.

A core sums in registers: its units multiply and add, vectors and elements come from the first cache, each sum waits for
its preceding product, and larger data come from the second cache, the last one or memory. These overlap, and the p-norm
combines them. Work beside sums is added: results are stored or transposed, inputs are copied. Threads share tasks, and
those with one task more than others take longest. Each parallel loop costs a fixed time.

A CPU's rates, and two factors for each template, are fitted to measured kernels (`rates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import tvm

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Cpu

from ...fitted import Factors, p_norm
from ...space import ceil_div
from ..machine import STACK_BYTES
from .rates import Rates

KEPT_SHARE = 0.125
"""The share of a cache that a layer's weight may take to be there still when a network is called again."""

CONVERTING = 3
"""The instructions that convert a vector of half precision or integers to float32."""


@dataclass(frozen=True)
class Counts:
    """The work of a kernel, of all its tasks together. Vectors are those that a unit of the CPU takes in a clock."""

    tasks: int
    """The pieces that threads share."""
    threads: int
    """The threads that share them."""
    loops: int
    """The parallel loops, one behind the other; 0 for a kernel of one thread."""
    multiplied: float
    """The vector multiply-adds."""
    loaded: float
    """The vectors that are loaded as factors."""
    chained: float
    """The steps of all tiles: in each, every sum waits for the preceding multiply-add to it."""
    broadcast: float = 0.0
    """The elements that are loaded into all lanes of a vector."""
    split: float = 0.0
    """The loaded vectors that may lie in two lines of a cache."""
    spilled: float = 0.0
    """The multiply-adds whose sums LLVM stores and loads, for want of a register or because a loop splits them."""
    allocated: float = 0.0
    """The tiles whose sums TVM takes memory for, of more bytes than it has on the stack (`allocations`)."""
    issued: float = 0.0
    """Other vector instructions: transforms, conversions, tests of padding, and the beginnings of rows and tiles."""
    stored: float = 0.0
    """The vectors that are stored, those of transposed results too."""
    transposed: float = 0.0
    """The vectors of results that are transposed first."""
    paired: float = 0.0
    """The square of the vectors of a tile, of all tiles that wait while they are finished: large ones take longer."""
    copied: float = 0.0
    """The vectors that are copied before they are read."""
    moved: float = 0.0
    """The elements that are moved one by one."""
    packed: float = 0.0
    """The elements of a weight that a call lays out one by one, in a loop that threads share (`packed_weight`)."""
    second: float = 0.0
    """The bytes that come from the second cache."""
    last: float = 0.0
    """The bytes that come from the last cache."""
    memory: float = 0.0
    """The bytes that come from memory."""


def clocks(counts: Counts, cpu: Cpu, rates: Rates, factors: Factors) -> float:
    """Return the clocks that a call of the kernel takes.

    All numbers of counts, rates and factors may also be arrays of NumPy, as they are in a fit.
    """
    loaded = counts.loaded * rates.load + counts.split * rates.split
    loaded += counts.broadcast * rates.broadcast / cpu.factors
    summing = p_norm(
        rates.power,
        factors.issued * counts.multiplied * rates.multiply / cpu.fma_units,
        factors.issued * (loaded + counts.spilled * rates.spill),
        counts.chained * cpu.fma_latency,
        counts.second * rates.second,
        counts.last * rates.last,
        counts.memory * rates.memory,
    )
    finishing = counts.issued * rates.issue + counts.stored * rates.store + counts.transposed * rates.transpose
    finishing += counts.allocated * rates.allocate
    finishing += counts.paired * rates.pair + counts.copied * rates.copy + counts.moved * rates.move
    share = ceil_div(counts.tasks, counts.threads) / counts.tasks
    begun = rates.call + counts.loops * rates.loop + counts.packed * rates.pack / counts.threads
    return begun + share * (summing + factors.waiting * finishing)


def threads_of(target: tvm.target.Target, parallel: bool) -> int:
    """Return the threads of a kernel on a target."""
    return int(target.attrs.get("num-cores", 1)) if parallel else 1


def pieces(lanes: int, cpu: Cpu) -> int:
    """Return the number of a unit's vectors in a vector of `lanes` lanes."""
    return ceil_div(lanes, cpu.unit_lanes)


def allocations(tiles: float, sum_bytes: int) -> float:
    """Return the tiles that TVM takes memory for: all of them, if the sums of one have too many bytes."""
    return tiles if sum_bytes >= STACK_BYTES else 0.0


def converted(workload: ConvWorkload, elements: float, cpu: Cpu) -> float:
    """Return the instructions that convert staged elements of half precision or integers to float32."""
    return 0.0 if workload.dtype == "float32" else CONVERTING * elements / cpu.unit_lanes


def spilled(steps: float, used: int, cpu: Cpu) -> float:
    """Return the multiply-adds without a register for their sum, in a number of steps that use `used` registers."""
    return steps * max(0, used - cpu.registers)


class Read(NamedTuple):
    """Bytes that are read in all; they come from the smallest cache that has room for `held` bytes."""

    nbytes: float
    held: float


def by_cache(cpu: Cpu, *reads: Read) -> dict[str, float]:
    """Return the bytes that come from each cache and from memory, by the names of counts; the first cache has none."""
    bytes_by_level = {"second": 0.0, "last": 0.0, "memory": 0.0}
    for nbytes, held in reads:
        if held > cpu.l1_bytes:
            bytes_by_level["second" if held <= cpu.l2_bytes else "last" if held <= cpu.l3_bytes else "memory"] += nbytes
    return bytes_by_level


def operands(problem: Problem, weight_bytes: int | None = None) -> tuple[Read, Read]:
    """Return the reading of all operands, once; `weight_bytes` are those of the weight once it is laid out.

    The weight of a network's layer stays in a cache until the next call only if it takes a small share of it.
    """
    workload = problem.workload
    given = workload.itemsize * prod(workload.w_shape)
    weight, others = given if weight_bytes is None else weight_bytes, workload.bytes_moved - given
    held = weight / KEPT_SHARE if problem.constant_weight else others + weight
    return Read(others, others + weight), Read(weight, held)


def packed_weight(problem: Problem) -> float:
    """Return the elements of the weight that a call lays out one by one: none of a constant one, as networks have."""
    return 0.0 if problem.constant_weight else float(prod(problem.workload.w_shape))
