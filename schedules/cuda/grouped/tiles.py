"""The knobs of convolutions in narrow groups on tensor cores, and sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.grouped_tiles import LANES, strip, unit_inputs, unit_outputs, units
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to
from ..machine import SHARED_ALIGNMENT

FOR_A_SUM, OTHER_REGISTERS = 1.75, 24
"""The registers of a thread for each sum, with the factors that it loads meanwhile, and its other registers, as NVRTC
takes them for sm_90 where it is not short of registers."""

MAX_UNROLLED = 2048
"""The most instructions of a thread for loads of factors and products, which follow each other without a loop."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `block_y` by `block_x` pixels of `warps_n` units of channels of some images."""

    block_y: int
    """The number of rows of pixels of a block."""
    block_x: int
    """The number of columns of pixels of a block."""
    warps_m: int
    """The number of warps along the rows of pixels."""
    warps_n: int
    """The number of warps along the channels, each of which computes a unit: a group, or two of four channels."""
    images: int = 1
    """The number of images of a block, which read its weights together: each has different warps."""

    @property
    def threads(self) -> int:
        return self.images * self.warps_m * self.warps_n * WARP

    @property
    def rows(self) -> int:
        """The number of matrices of a warp along the rows of pixels, of two rows each."""
        return self.block_y // (2 * self.warps_m)

    @property
    def columns(self) -> int:
        """The number of matrices of a warp along a row of pixels, of eight pixels each."""
        return self.block_x // 8


def has_pairs(workload: ConvWorkload) -> bool:
    """Return whether a unit is two groups, whose sums are kept apart."""
    return unit_inputs(workload) > workload.w_shape[1]


def vectors(workload: ConvWorkload) -> int:
    """Return the number of vectors of channels that a sum reads, under all taps."""
    return prod(workload.kernel) * unit_inputs(workload) // LANES


def sums(workload: ConvWorkload, config: Config) -> int:
    """Return the number of sums of a thread."""
    return config.rows * config.columns * unit_outputs(workload) // 2


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers that a thread takes."""
    return int(FOR_A_SUM * sums(workload, config) * (1 + has_pairs(workload))) + OTHER_REGISTERS


def instructions(workload: ConvWorkload, config: Config) -> int:
    """Return the instructions of a thread that load factors and multiply them."""
    matrices, columns = config.rows * config.columns, unit_outputs(workload) // 8
    return ceil_div(vectors(workload), 2) * (matrices * (1 + columns * (1 + has_pairs(workload))) + columns)


def pitch(count: int) -> int:
    """Return the bytes from one row of `count` vectors to the next: an odd number of vectors, for different banks."""
    return (count | 1) * COPY_BYTES


def pixel_bytes(workload: ConvWorkload, config: Config) -> tuple[int, int, int]:
    """Return the bytes in shared memory of a column of the input, of a strip of them, and of a line."""
    column = config.warps_n * unit_inputs(workload) // LANES
    width = strip(workload, config.block_x)
    _, read = workload.read_by((config.block_y, config.block_x))
    whole = pitch(width * column)
    return column * COPY_BYTES, whole, ceil_div(read, width) * whole


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block in bytes: its pixels, and its weights."""
    lines, _ = workload.read_by((config.block_y, config.block_x))
    _, _, line = pixel_bytes(workload, config)
    weights = config.warps_n * unit_outputs(workload) * pitch(vectors(workload))
    small, large = sorted((config.images * lines * line, weights))
    return ceil_to(small, SHARED_ALIGNMENT) + large


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    tiles = prod(map(ceil_div, workload.output_size, (config.block_y, config.block_x)))
    return ceil_div(workload.batch, config.images) * tiles * ceil_div(units(workload), config.warps_n)
