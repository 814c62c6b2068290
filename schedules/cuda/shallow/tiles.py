"""The knobs of convolutions of few input channels on tensor cores, and sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tvmconv.compute.tensor.shallow_tiles import EIGHT, QUAD, STEP, instructions_of_sum, pixel_channels
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to
from ..gemm.tiles import VECTOR
from ..grouped.tiles import pitch
from ..machine import SHARED_ALIGNMENT, bank_reads

FOR_A_SUM, OTHER_REGISTERS = 1.5, 16
"""The registers of a thread for each sum, with the factors that it loads meanwhile, and its other registers, as NVRTC
takes them for sm_90."""

MAX_SUMS = 96
"""The most sums of a thread: with 128 of them NVRTC spills registers."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `block_y` by `block_x` pixels of `block_n` output channels."""

    block_y: int
    """The number of rows of pixels of a block."""
    block_x: int
    """The number of columns of pixels of a block."""
    block_n: int
    """The number of output channels of a block."""
    warps_m: int
    """The number of warps along the rows of pixels."""
    warps_n: int
    """The number of warps along the output channels."""

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * WARP

    @property
    def rows(self) -> int:
        """The number of matrices of a warp along the rows of pixels, of two rows each."""
        return self.block_y // (2 * self.warps_m)

    @property
    def columns(self) -> int:
        """The number of matrices of a warp along a row of pixels, of eight pixels each."""
        return self.block_x // EIGHT

    @property
    def outputs(self) -> int:
        """The number of output channels of a warp."""
        return self.block_n // self.warps_n

    @property
    def sums(self) -> int:
        """The number of sums of a thread."""
        return self.rows * self.columns * self.outputs // 2


SEGMENT = 16
"""The threads that read neighbouring elements of a line of the input."""


def registers_of(config: Config) -> int:
    """Return the registers that a thread takes."""
    return int(FOR_A_SUM * config.sums) + OTHER_REGISTERS


def instructions(workload: ConvWorkload, config: Config) -> int:
    """Return the instructions of a thread that load factors and multiply them."""
    matrices, outputs = config.rows * config.columns, config.outputs // EIGHT
    return instructions_of_sum(workload) * (matrices * (4 + outputs) + outputs)


def line_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes in shared memory of a line of the input, in whole words."""
    _, columns = workload.read_by((1, config.block_x))
    return ceil_to(columns * pixel_channels(workload), 2) * workload.itemsize


def store_vector(workload: ConvWorkload, config: Config) -> int:
    """Return the neighbouring outputs that a thread stores at once: channels of a pixel, or pixels of a plane."""
    if workload.out_layout == "NCHW":
        return gcd(config.columns, workload.output_size[1], VECTOR)
    return gcd(config.outputs // QUAD, EIGHT)


def elements_read(workload: ConvWorkload, config: Config) -> int:
    """Return the number of input elements that a thread reads: segments of lines, in NCHW of each channel's lines."""
    lines, columns = workload.read_by((config.block_y, config.block_x))
    channels = pixel_channels(workload)
    lines, columns = (lines * channels, columns) if workload.layout == "NCHW" else (lines, columns * channels)
    return ceil_div(lines, config.threads // SEGMENT) * ceil_div(columns, SEGMENT)


def accesses(workload: ConvWorkload, config: Config) -> int:
    """Return the number of accesses to shared memory for a warp's words of the input: one without bank conflicts."""
    return bank_reads(
        {
            p * config.columns * workload.stride[1] * pixel_channels(workload) // 2 + pair
            for p in range(EIGHT)
            for pair in range(QUAD)
        }
    )


def weight_pitch(workload: ConvWorkload) -> int:
    """Return the bytes between the weights of neighbouring outputs."""
    return pitch(instructions_of_sum(workload) * STEP // EIGHT)


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block in bytes: its pixels, and its weights."""
    lines, _ = workload.read_by((config.block_y, config.block_x))
    small, large = sorted((lines * line_bytes(workload, config), config.block_n * weight_pitch(workload)))
    return ceil_to(small, SHARED_ALIGNMENT) + large


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    tiles = prod(map(ceil_div, workload.output_size, (config.block_y, config.block_x)))
    return workload.batch * tiles * ceil_div(workload.out_channels, config.block_n)
