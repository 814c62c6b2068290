"""The knobs of sparse convolutions on CUDA, and sizes that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvmconv.compute.gradients.weight_planes import BANKS
from tvmconv.problem.workload import ConvWorkload

from ...space import ceil_div, ceil_to
from ..machine import SHARED_ALIGNMENT

SPARE_REGISTERS = 24
"""The registers that a thread takes besides its outputs and the elements that it stages."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `images * threads_y * thread_y * threads_x * thread_x` pixels."""

    block_m: int
    """The number of output channels of a block, and of each of its threads."""
    images: int
    threads_y: int
    threads_x: int
    thread_y: int
    """The number of neighbouring rows of a thread."""
    thread_x: int
    """The number of neighbouring columns of a thread."""
    block_c: int
    """The number of input channels that are staged at a time."""
    num_stages: int
    """The number of chunks that shared memory has room for: while one is computed, the others are being copied."""
    tiles: int = 1
    """The tiles that a block computes in turn, by the same code. On an H100 one was the fastest everywhere."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {
        "channels": "block_m",
        "rows": "thread_y",
        "columns": "thread_x",
        "chunk": "block_c",
        "buffers": "num_stages",
    }

    @property
    def threads(self) -> int:
        return self.images * self.threads_y * self.threads_x

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and columns of a block."""
        return self.threads_y * self.thread_y, self.threads_x * self.thread_x

    @property
    def outputs(self) -> int:
        """The number of outputs that a thread keeps in registers."""
        return self.block_m * self.thread_y * self.thread_x


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of pixels; the grid has that number for each block of output channels."""
    return prod(grid_of_tiles(workload, config)) // config.tiles


def grid_of_tiles(workload: ConvWorkload, config: Config) -> tuple[int, int, int]:
    """Return the number of tiles over the batch, the rows and the columns of the output."""
    down, across = map(ceil_div, workload.output_size, config.tile)
    return workload.batch // config.images, down, across


def registers(workload: ConvWorkload, config: Config) -> int:
    """Return a thread's registers, roughly: its outputs, or twice all that it reads if less, and its staging."""
    held = (2 if copies(workload) else config.block_c) * staged_elements(workload, config)
    return min(config.outputs, 2 * workload.in_channels * elements(workload, config)) + held + SPARE_REGISTERS


def elements(workload: ConvWorkload, config: Config) -> int:
    """Return the elements of a channel that a thread reads for its pixels, if it needs them all."""
    shared = zip((config.thread_y, config.thread_x), workload.kernel, strict=True)
    return prod(min(size + span - 1, size * span) for size, span in shared)


def staged_elements(workload: ConvWorkload, config: Config) -> int:
    """Return the number of elements of a channel that a thread stages."""
    return ceil_div(config.images * prod(window(workload, config)), config.threads)


def copies(workload: ConvWorkload) -> bool:
    """Return whether the input is staged by asynchronous copies, which take four bytes at least."""
    return workload.itemsize == 4


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block, in bytes."""
    rows, _ = window(workload, config)
    size = config.num_stages * config.block_c * config.images * rows * pitch(workload, config) * workload.itemsize
    return ceil_to(size, SHARED_ALIGNMENT)


def window(workload: ConvWorkload, config: Config) -> tuple[int, int]:
    """Return the rows and columns of the input that a tile reads."""
    return workload.read_by(config.tile)


def pitch(workload: ConvWorkload, config: Config) -> int:
    """Return the number of elements of a row in shared memory.

    Where rows of threads are not whole warps there are some to spare, so that threads at the end of one row and at the
    beginning of the next read different banks.
    """
    _, columns = window(workload, config)
    if config.threads_x % BANKS == 0:
        return columns
    below, beside = config.thread_y * workload.stride[0], config.threads_x * config.thread_x * workload.stride[1]
    spared = (columns + more for more in range(BANKS) if ((columns + more) * below - beside) % BANKS == 0)
    return next(spared, columns)
