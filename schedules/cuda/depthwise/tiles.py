"""The tiles of a depthwise convolution on CUDA.

A block computes one tile of one or several output planes, and a thread a part of it in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvmconv.problem.workload import ConvWorkload

from ...space import ceil_div, divisors
from ..machine import SHARED_ALIGNMENT

MAX_WINDOW = 128
"""The most input elements that a thread stages in registers."""

OTHER_REGISTERS = 22
"""The registers of a thread besides its outputs, its window and its taps."""

MAX_TAPS = 128
"""The most taps of a thread that `registers` counts, a quarter of which it adds."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `vthreads * threads * outputs of a thread` in y and in x."""

    planes: int
    """The number of output channels that a block computes."""
    threads_y: int
    threads_x: int
    vthreads_y: int
    """The number of strided parts of a block; each thread works in all of them."""
    vthreads_x: int
    thread_y: int
    """The number of neighbouring rows that a thread computes in each of its vthreads."""
    thread_x: int
    """The number of neighbouring columns that a thread computes in each of its vthreads."""
    store: int
    """The number of neighbouring outputs that one store instruction writes."""
    unroll: int
    """The tap loops to unroll, from the innermost: 0 none, 1 a row of the kernel, 2 all of it."""
    shared_input: bool
    """True to stage the input tile in shared memory, else it is read through the cache.

    In the second case it is read once into registers where all taps are unrolled, so that outputs share it, else tap by
    tap.
    """
    shared_filter: bool
    """True to stage the filter in shared memory, else it is read through the cache."""
    load: int = 1
    """The number of neighbouring input elements that one load instruction reads, where it is staged or copied."""
    siblings: int = 1
    """The output channels of one input channel that a thread computes from the same window: one of them or all."""
    flat: bool = False
    """True to copy whole planes into and out of shared memory in memory order, so that any width is coalesced."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"rows": "thread_y", "columns": "thread_x", "vector": "store"}

    @property
    def threads_z(self) -> int:
        return ceil_div(self.planes, self.siblings)

    @property
    def threads(self) -> int:
        return self.threads_z * self.threads_y * self.threads_x

    @property
    def block_y(self) -> int:
        """The number of rows of a block."""
        return self.vthreads_y * self.threads_y * self.thread_y

    @property
    def block_x(self) -> int:
        """The number of columns of a block."""
        return self.vthreads_x * self.threads_x * self.thread_x

    @property
    def outputs(self) -> int:
        """The number of outputs that a thread keeps in registers."""
        return self.siblings * self.vthreads_y * self.vthreads_x * self.thread_y * self.thread_x


LEAST = Config(
    1, 1, 1, 1, 1, 1, 1, 1, unroll=0, shared_input=False, shared_filter=False, load=1, siblings=1, flat=False
)


def whole_planes(workload: ConvWorkload, at_most: int) -> tuple[int, ...]:
    """Return numbers of planes that divide the output channels into blocks, ascending.

    More than one has to be all of an input channel's: TVM cannot tell that a part of them reads one channel only, and
    would stage every channel.
    """
    m = workload.multiplier
    return tuple(p for p in divisors(workload.out_channels, at_most) if p == 1 or p % m == 0)


def window_elements(workload: ConvWorkload, config: Config) -> int:
    """Return the input elements that a thread stages in registers, for all its vthreads."""
    if config.shared_input or config.unroll < 2:
        return 0
    return prod(workload.read_by((config.thread_y, config.thread_x))) * config.vthreads_y * config.vthreads_x


def staged_elements(workload: ConvWorkload, config: Config, outputs: tuple[int, int]) -> int:
    """Return the input elements that are staged for a tile of outputs of a channel, in whole loads."""
    rows, columns = workload.read_by(outputs)
    surplus = -workload.padding[1] % config.load
    return rows * ceil_div(surplus + columns, config.load) * config.load


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block, in bytes; where planes go through it, TVM may need less."""
    channels = ceil_div(config.planes, workload.multiplier)
    buffers = []
    if config.shared_input:
        buffers.append(channels * staged_elements(workload, config, (config.block_y, config.block_x)))
    if config.flat:
        buffers += [channels * workload.height * workload.width, config.planes * prod(workload.output_size)]
    if config.shared_filter:
        buffers.append(config.planes * prod(workload.kernel))
    *aligned, last = [workload.itemsize * elements for elements in buffers] or [0]
    return sum(ceil_div(size, SHARED_ALIGNMENT) * SHARED_ALIGNMENT for size in aligned) + last


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    height, width = workload.output_size
    planes = workload.batch * workload.out_channels // config.planes
    return planes * ceil_div(height, config.block_y) * ceil_div(width, config.block_x)


def registers(workload: ConvWorkload, config: Config) -> int:
    """Return the registers for a thread's outputs, addresses and tests, and for a quarter of its window and its taps.

    `ptxas` loads the rest later: the median of 430 kernels on sm_90 has this number of registers.
    """
    taps = min(MAX_TAPS, config.siblings * prod(workload.kernel)) if config.unroll == 2 else 0
    return OTHER_REGISTERS + config.outputs + (window_elements(workload, config) + taps) // 4
