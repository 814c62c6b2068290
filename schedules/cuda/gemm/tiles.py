"""Code that the CUDA schedules of dense convolutions share: the tiles of a matrix product.

Rows of the product are output channels of a group, columns are pixels of all images, and its terms are input channels
and taps. A block computes a tile of it, and a thread a micro-tile in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to
from ..machine import SHARED_ALIGNMENT

VECTOR = 4


@dataclass(frozen=True)
class GemmConfig:
    """The knobs. A block computes `vthreads * threads * outputs of a thread` channels and pixels."""

    threads_m: int
    """The number of threads of a block along the output channels."""
    threads_n: int
    """The number of threads of a block along the pixels."""
    lanes_m: int
    """The number of threads of a warp along the output channels; the others of its 32 lie along the pixels."""
    vthreads_m: int
    """The number of strided parts of a block; each thread works in all of them."""
    vthreads_n: int
    thread_m: int
    """The number of neighbouring output channels that a thread computes in each of its vthreads."""
    thread_n: int
    """The number of neighbouring pixels that a thread computes in each of its vthreads."""
    block_c: int
    """The number of input channels of a chunk of the reduction."""
    block_r: int
    """The number of rows of the kernel in a chunk."""
    block_s: int
    """The number of columns of the kernel in a chunk."""
    num_stages: int = 1
    """The number of chunks in shared memory: 1 computes after each copy, more copy the next ones meanwhile."""
    asynchronous: bool = False
    """True to copy the next chunks with cp.async, else one goes through registers."""
    packed: bool = False
    """True to lay the weight out in tiles first, else it is read as it is."""
    load: int = 1
    """The number of neighbouring elements of the packed weight that one load instruction reads."""
    store: int = 1
    """The number of neighbouring pixels that one store instruction writes."""
    split_k: int = 1
    """The number of parts of the reduction, which blocks share."""
    min_blocks_per_sm: int = 1
    """The number of blocks that a multiprocessor has to have room for, which limits the registers."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {
        "channels": "thread_m",
        "pixels": "thread_n",
        "chunk_c": "block_c",
        "chunk_r": "block_r",
        "chunk_s": "block_s",
        "stages": "num_stages",
        "parts": "split_k",
        "resident": "min_blocks_per_sm",
    }

    @property
    def threads(self) -> int:
        return self.threads_m * self.threads_n

    @property
    def block_m(self) -> int:
        """The number of output channels of a block."""
        return self.vthreads_m * self.threads_m * self.thread_m

    @property
    def block_n(self) -> int:
        """The number of pixels of a block."""
        return self.vthreads_n * self.threads_n * self.thread_n

    @property
    def outputs(self) -> int:
        """The number of outputs of a thread."""
        return self.vthreads_m * self.thread_m * self.vthreads_n * self.thread_n

    @property
    def block_k(self) -> int:
        """The number of terms of the reduction in a chunk."""
        return self.block_c * self.block_r * self.block_s


def fragments(config: GemmConfig) -> int:
    """Return the number of elements of both factors that a thread multiplies at a time."""
    return config.vthreads_m * config.thread_m + config.vthreads_n * config.thread_n


def widest_store(workload: ConvWorkload, pixels: int) -> int:
    """Return how many of a thread's `pixels` neighbouring pixels one instruction can store, wherever they begin."""
    return next(width for width in (4, 2, 1) if pixels % width == 0 and prod(workload.output_size) % width == 0)


def block_channels(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the input channels that a block sums over, rounded up to whole chunks."""
    return ceil_div(workload.w_shape[1], config.split_k * config.block_c) * config.block_c


def copies_behind(workload: ConvWorkload, elements: int) -> bool:
    """Return whether cp.async can copy from an array of `elements` elements.

    An element has to have 4 bytes, and TVM counts the array's bytes in 32 bits.
    """
    return workload.itemsize == 4 and elements * workload.itemsize < 2**31


def reads_zeros(workload: ConvWorkload, config: GemmConfig) -> bool:
    """Return whether copies of the input have to test each element: for padding, or past the last channel.

    It is an array of NumPy for a config whose knobs are arrays.
    """
    return any(workload.padding) | (block_channels(workload, config) * config.split_k != workload.w_shape[1])


def chunks(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the number of chunks that a block goes through."""
    return block_channels(workload, config) * prod(workload.kernel) // config.block_k


def blocks(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the blocks of the grid, without those that lay out the weight or add up the parts."""
    rows = workload.groups * ceil_div(workload.multiplier, config.block_m)
    return config.split_k * rows * ceil_div(workload.batch * prod(workload.output_size), config.block_n)


def shared_bytes(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the shared memory of a block, in bytes.

    For weights that are not packed TVM leaves out the end of the last row.
    """
    row = config.block_m if config.packed else ceil_div(config.block_m - VECTOR, WARP) * WARP + VECTOR
    size = config.block_k * config.num_stages * workload.itemsize
    return ceil_to(row * size, SHARED_ALIGNMENT) + ceil_to(config.block_n * size, SHARED_ALIGNMENT)
