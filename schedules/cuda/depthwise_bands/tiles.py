"""The knobs of depthwise convolutions on tensor cores, and the resources that a block takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconv.compute.depthwise.bands import (
    BAND,
    BESIDE,
    EIGHT,
    LEAST_COPY,
    STEP_BYTES,
    VECTOR_BYTES,
    columns_of,
    lanes,
    lines_read,
    reach,
    sequences_as_rows,
)
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to
from ..machine import SHARED_ALIGNMENT
from ..tensor.tiles import tf32_products

FOR_A_SUM, OTHER_REGISTERS = 1.0, 36
"""The registers of a thread for each sum, and its other registers: for a row of taps, input columns and addresses."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes eight rows for each of its warps along a plane's rows."""

    warps_y: int
    """The number of warps along the rows of a plane."""
    block_x: int
    """The number of columns of a block, all of which each warp computes."""
    images: int
    """The number of images in a block; each warp computes its rows in all of them."""
    channels: int
    """The number of channels of a block, which are computed by different warps."""

    @property
    def block_y(self) -> int:
        """The number of rows of a block."""
        return self.warps_y * EIGHT

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and the columns of a block."""
        return self.block_y, self.block_x

    @property
    def threads(self) -> int:
        return self.channels * self.warps_y * WARP

    @property
    def sums(self) -> int:
        """The number of sums of a thread."""
        return self.images * self.block_x // 4


def products(workload: ConvWorkload, config: Config) -> list[tuple[int, int, int]]:
    """Return a warp's products for a row of taps, by column: the band, the step in it, and the step of columns.

    Steps of columns are counted from the first column of `lines_read`.
    """
    step = columns_of(workload, STEP_BYTES)
    _, columns = lines_read(workload, config.tile)
    bands, numbers = range(config.block_x // BAND), range(reach(workload) // step)
    steps_read = [(band, number, (band * BAND - columns[0]) // step + number) for band in bands for number in numbers]
    return sorted((each for each in steps_read if 0 <= each[2] < len(columns) // step), key=lambda each: each[2])


def taps_rows(workload: ConvWorkload, config: Config, warp: int) -> tuple[int, int]:
    """Return the first row of taps for which a warp reads more than padding, and the end of these rows."""
    if config.block_y < workload.output_size[0]:
        return 0, workload.kernel[0]
    top = workload.padding[0] - warp * EIGHT
    return max(0, top - EIGHT + 1), max(0, min(workload.kernel[0], top + workload.height))


def copied_vectors(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the number of vectors of the input that a thread copies, and of vectors of taps."""
    rows, columns = lines_read(workload, config.tile)
    lines = config.images * len(rows) * len(columns) / lanes(workload)
    taps = workload.kernel[0] * taps_bytes(workload) / VECTOR_BYTES
    return lines * config.channels / config.threads, taps * config.channels / config.threads


def is_copied_asynchronously(workload: ConvWorkload) -> bool:
    """Return whether vectors of the input are long enough for asynchronous copies; else a thread waits for each."""
    return lanes(workload) * workload.itemsize >= LEAST_COPY


def registers_of(problem: Problem, config: Config) -> int:
    """Return the registers that a thread takes."""
    factors = 4 * len({step for _, step, _ in products(sequences_as_rows(problem.workload), config)})
    of_splitting = factors + config.block_x // 4 if tf32_products(problem) > 1 else 0
    return int(FOR_A_SUM * config.sums) + factors + of_splitting + OTHER_REGISTERS


def line_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes in shared memory from a line to the next one: an odd number of vectors, for the banks."""
    _, columns = lines_read(workload, config.tile)
    return (len(columns) // columns_of(workload, VECTOR_BYTES) | 1) * VECTOR_BYTES


def plane_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes in shared memory of a block's lines of a plane."""
    rows, _ = lines_read(workload, config.tile)
    return len(rows) * line_bytes(workload, config)


def taps_bytes(workload: ConvWorkload) -> int:
    """Return the bytes in shared memory of a row of taps, in both copies."""
    return 2 * (reach(workload) + BESIDE) * workload.itemsize


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block in bytes: its lines, and its taps."""
    lines = config.images * config.channels * plane_bytes(workload, config)
    small, large = sorted((lines, config.channels * workload.kernel[0] * taps_bytes(workload)))
    return ceil_to(small, SHARED_ALIGNMENT) + large


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    tiles = prod(map(ceil_div, workload.output_size, (config.block_y, config.block_x)))
    return workload.batch // config.images * workload.in_channels // config.channels * tiles
