"""The tiles of a depthwise convolution in NHWC on CUDA.

A thread computes a tile of pixels of a few neighbouring channels in registers, and neighbouring threads have
neighbouring channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tvmconv.problem.workload import ConvWorkload

from ...space import ceil_div, ceil_to

LARGEST_VECTOR = 16
"""The bytes of the widest load and store."""

ADDRESS_REGISTERS = 20
"""The registers of a thread's addresses and tests."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `vector * threads_c` channels of `threads * outputs of a thread` in y and in x."""

    vector: int
    """The number of neighbouring channels of a thread, which one instruction loads and one stores."""
    threads_c: int
    """The number of threads along the channels."""
    threads_y: int
    threads_x: int
    thread_y: int
    """The number of neighbouring rows that a thread computes from one pass over the rows of the input."""
    thread_x: int
    """The number of neighbouring columns that a thread computes."""
    ahead: bool
    """True to read all of a thread's input before the first product, else row by row."""

    @property
    def channels(self) -> int:
        """The number of channels of a block."""
        return self.vector * self.threads_c

    @property
    def threads(self) -> int:
        return self.threads_c * self.threads_y * self.threads_x

    @property
    def block_y(self) -> int:
        """The number of rows of a block."""
        return self.threads_y * self.thread_y

    @property
    def block_x(self) -> int:
        """The number of columns of a block."""
        return self.threads_x * self.thread_x

    @property
    def outputs(self) -> int:
        """The number of outputs that a thread keeps in registers."""
        return self.vector * self.thread_y * self.thread_x


def vectors(workload: ConvWorkload) -> tuple[int, ...]:
    """Return the numbers of neighbouring channels that an instruction can load, ascending."""
    sizes = (1, 2, 4, 8)
    return tuple(
        size for size in sizes if workload.out_channels % size == 0 and size * workload.itemsize <= LARGEST_VECTOR
    )


def whole(workload: ConvWorkload, config: Config) -> tuple[bool, bool]:
    """Return whether a thread computes all rows, and all columns, of the output: it then leaves out padding there."""
    rows, columns = workload.output_size
    return config.thread_y == rows, config.thread_x == columns


def read(workload: ConvWorkload, config: Config) -> tuple[int, int]:
    """Return the rows and the columns of the input, with those of zeros around it, that a thread reads."""
    return _read_by(workload, (config.thread_y, config.thread_x))


@lru_cache(maxsize=1024)  # the model of thousands of configurations asks for a few tiles
def _read_by(workload: ConvWorkload, tile: tuple[int, int]) -> tuple[int, int]:
    sizes = zip(workload.read_by(tile), (workload.height, workload.width), tile, workload.output_size, strict=True)
    rows, columns = (min(size, extent) if computed == outputs else size for size, extent, computed, outputs in sizes)
    return rows, columns


def products(workload: ConvWorkload, config: Config) -> int:
    """Return the multiply-adds of a thread."""
    rows, columns = inside(workload)
    (r, s), (all_rows, all_columns) = workload.kernel, whole(workload, config)
    of_rows = rows if all_rows else config.thread_y * r
    return config.vector * of_rows * (columns if all_columns else config.thread_x * s)


@lru_cache(maxsize=64)
def inside(workload: ConvWorkload) -> tuple[int, int]:
    """Return the number of pairs of an output row and a kernel row that meet inside the input; also of columns."""
    rows, columns = (
        sum(
            0 <= pixel * workload.stride[axis] + tap * workload.dilation[axis] - workload.padding[axis] < size
            for pixel in range(workload.output_size[axis])
            for tap in range(workload.kernel[axis])
        )
        for axis, size in enumerate((workload.height, workload.width))
    )
    return rows, columns


def registers(workload: ConvWorkload, config: Config) -> int:
    """Return the registers of a thread for sums, taps and all of its input, without those of addresses and tests."""
    rows, columns = read(workload, config)
    ahead = rows * columns * ceil_div(config.vector * workload.itemsize, 4) if config.ahead else 0
    return _sums_and_taps(workload, config) + ahead


def _sums_and_taps(workload: ConvWorkload, config: Config) -> int:
    """Return the registers for sums and taps, and for a row of the input.

    Beside the rows of outputs that a row of the input is added to, half of the others are counted: the rest are stored.
    """
    at_once = (min(config.thread_y, ceil_div(workload.window[0], workload.stride[0])) + config.thread_y + 1) // 2
    taps = min(config.thread_y, workload.kernel[0]) * workload.kernel[1]
    return config.vector * (at_once * config.thread_x + taps + read(workload, config)[1])


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers of a thread, rounded up to a multiple of 8.

    Loads ahead add none: for some 300 kernels on sm_90, `ptxas` moved them behind the products of earlier rows.
    """
    return ceil_to(ADDRESS_REGISTERS + _sums_and_taps(workload, config), 8)


def edges(workload: ConvWorkload, config: Config, is_open: bool) -> int:
    """Return the vectors of a thread's input that may be in the padding; all, where tiles do not divide the output."""
    top, left, bottom, right = workload.padding
    tiles = zip(workload.output_size, (config.block_y, config.block_x), strict=True)
    sizes = zip(read(workload, config), tiles, (top + bottom, left + right), whole(workload, config), strict=True)
    inside = [
        size if is_whole else 0 if is_open or output % block else max(0, size - pads)
        for size, (output, block), pads, is_whole in sizes
    ]
    return prod(read(workload, config)) - prod(inside)


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block, which has its taps, in bytes."""
    return workload.sum_bytes * config.channels * prod(workload.kernel)


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    tiles = prod(map(ceil_div, workload.output_size, (config.block_y, config.block_x)))
    return workload.batch * tiles * (workload.out_channels // config.channels)
