"""The knobs of linear layers of few rows on CUDA, the default configuration, and the model that chooses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import tvm

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, named, wasted
from ..machine import MOST_REGISTERS, REGISTERS, WARP
from ..tensor.model import KERNEL, mostly_largest

MOST_ROWS = 4
"""The most rows of x: a thread has them all, and with more of them tensor cores multiply as fast as memory reads."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `rows` output channels, for all rows of x."""

    warps: int
    """The number of warps along a sum."""
    rows: int
    """The number of output channels of a block, each with threads of its own."""
    ahead: int
    """The number of vectors of a weight that a thread loads before it uses the first one."""

    @property
    def lanes(self) -> int:
        """The number of threads along a sum."""
        return self.warps * WARP

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


LEAST = Config(warps=1, rows=1, ahead=1)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take linear layers of few rows: 1x1 convolutions of few images of one pixel."""
    workload = problem.workload
    if not problem.is_dense or workload.groups > 1:
        return "is for dense convolutions in one group"
    if not workload.is_linear:
        return "takes 1x1 kernels on images of one pixel, without padding"
    if workload.batch > MOST_ROWS:
        return f"takes up to {MOST_ROWS} images, not {workload.batch}"
    return None


def vector(workload: ConvWorkload) -> int:
    """Return the elements that a thread loads at once: up to 16 bytes, of which rows of a weight have whole numbers."""
    return gcd(COPY_BYTES // workload.itemsize, workload.in_channels)


def constraints(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[Config], bool]]:
    """Return the tests that a configuration must pass, by name."""
    workload = problem.workload
    max_threads = int(target.attrs["max_threads_per_block"])

    def powers_of_two(config: Config) -> bool:
        """Return whether TVM can halve the warps along a sum again and again, until their sums are one."""
        return config.warps & (config.warps - 1) == 0

    def threads(config: Config) -> bool:
        return config.threads <= max_threads

    def registers(config: Config) -> bool:
        return registers_of(workload, config) <= min(MOST_REGISTERS, REGISTERS // config.threads)

    return named(powers_of_two, threads, registers)


OTHER_REGISTERS = 16
"""The registers of a thread beside vectors and sums, which NVRTC takes for sm_90."""


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers that a thread takes: for vectors of the weight and of each row of x, and for sums."""
    words = ceil_div(vector(workload) * workload.itemsize, 4)
    return config.ahead * words * (1 + workload.batch) + workload.batch + OTHER_REGISTERS


def chunks(workload: ConvWorkload, config: Config) -> int:
    """Return how many times a thread waits for vectors."""
    return ceil_div(workload.in_channels // vector(workload), config.lanes * config.ahead)


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    return ceil_div(workload.out_channels, config.rows)


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by registers."""
    by_registers = REGISTERS // (config.threads * registers_of(workload, config))
    return max(1, min(by_registers, gpu.warps * WARP // config.threads, gpu.blocks))


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of some, that the model finds the fastest."""
    legal = constraints(problem, target).values()
    tried = [Config(warps, rows, ahead) for warps, rows, ahead in product(WARPS, ROWS, AHEAD)]
    return min(
        (config for config in tried if config.threads <= MOST_THREADS and all(holds(config) for holds in legal)),
        key=lambda config: estimate(problem, config, target),
    )


WARPS, ROWS, AHEAD = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8)
"""The values of the knobs that are worth a trial."""

MOST_THREADS = 256
"""The most threads of a block in a default: those of larger ones wait for each other longer."""

LATENCY = 1000.0
"""The clocks from a load until its vector comes from memory that is busy.

This and the next numbers are what is known of an H100, not fitted: seven layers of one row in float16 took 0.56 to 1.05
times the estimate there, all of them less than by `cuda/tensor`.
"""

BEGINNING, FINISHING = 60.0, 40.0
"""The instructions that a thread begins with, and those for each sum: shuffles, and its share of the epilogue."""

STARTING = 30.0
"""The clocks from a block of a multiprocessor to the next one that it begins with."""

MEETING = 60.0
"""The clocks in which the warps along a sum bring theirs together in shared memory, for each row of x."""

ISSUED = 3.0
"""The instructions that a multiprocessor's warps begin in a clock, of four at best, as `cuda/grouped` has it."""

ARRIVING = 48.0
"""The bytes that come to a multiprocessor in a clock at most, through the L2 cache, as `cuda/tensor` has it."""


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the kernel should take.

    As for `cuda/tensor`, three things bound it: the units of the busiest multiprocessor, the threads that wait for what
    they have asked for, and the memory.
    """
    workload, gpu = problem.workload, gpu_of(target)
    size, converted = vector(workload), workload.dtype != workload.storage.sums
    turns = ceil_div(blocks(workload, config), gpu.multiprocessors)
    together = min(turns, resident_blocks(workload, config, gpu))
    rounds = chunks(workload, config)
    steps, products = rounds * config.ahead, workload.batch * size
    if steps * config.lanes * size > workload.in_channels:  # products behind the last term are left out one by one
        products *= 3
    loading = (1 + workload.batch) * (1 + size * converted) + products
    issued = steps * loading + BEGINNING + workload.batch * FINISHING
    arriving = turns * config.rows * workload.in_channels * workload.itemsize / ARRIVING
    units = max(turns * config.threads // WARP * issued / ISSUED, arriving) + turns * STARTING
    meeting = workload.batch * MEETING * (config.warps > 1)
    waiting = ceil_div(turns, together) * (rounds * LATENCY + issued + meeting)
    return mostly_largest(units, waiting, workload.bytes_moved / gpu.bytes_per_clock) + KERNEL


WORTH_A_TRIAL = 1.5
"""The clocks that a configuration may take by the model to be tried, as a multiple of the default's."""


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    default = default_config(problem, target)
    bound = WORTH_A_TRIAL * estimate(problem, default, target)

    def several_warps(config: Config) -> bool:
        return 2 * WARP <= config.threads <= 512

    def promising(config: Config) -> bool:
        return estimate(problem, config, target) <= bound

    knobs = {"warps": WARPS, "rows": ROWS, "ahead": AHEAD}
    return Space(default, LEAST, knobs, constraints(problem, target), named(several_warps), promising)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = problem.workload
    return {
        "clocks": estimate(problem, config, target),
        "threads": config.threads,
        "chunks": chunks(workload, config),
        "blocks": blocks(workload, config),
        "waste_terms": wasted(workload.in_channels // vector(workload), config.lanes * config.ahead),
        "waste_rows": wasted(workload.out_channels, config.rows),
        "terms": workload.in_channels,
    }


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {
        "loads ahead": replace(config, ahead=1),
        "several outputs": replace(config, rows=1),
        "several warps along a sum": replace(config, warps=1),
    }
