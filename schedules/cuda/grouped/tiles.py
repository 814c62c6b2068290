"""The knobs of convolutions in narrow groups on tensor cores, and the constraints of legal configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import tvm

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.grouped_tiles import LANES, strip, unit_inputs, unit_outputs, units
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import gpu_of

from ...space import ceil_div, ceil_to, named, wasted
from ..machine import BLOCK_BYTES, MOST_REGISTERS, QUARTERS, REGISTERS, SHARED_ALIGNMENT, WARP

FOR_A_SUM, OTHER_REGISTERS = 1.75, 24
"""The registers of a thread for each sum, with the factors that it loads meanwhile, and beside them, which NVRTC takes
for sm_90 where it is not short of them."""

MOST_UNROLLED = 2048
"""The most instructions of a thread for loads of factors and products, which follow each other without a loop."""

MOST_WASTE = 3.0
"""The most outputs that whole tiles compute, as a multiple of those wanted."""


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
    """The number of images of a block, which read its weights together: each has warps of its own."""

    @property
    def threads(self) -> int:
        return self.images * self.warps_m * self.warps_n * WARP

    @property
    def rows(self) -> int:
        """The number of matrices of a warp along the rows of pixels, of two rows each."""
        return self.block_y // (2 * self.warps_m)

    @property
    def columns(self) -> int:
        """The number of them along a row of pixels, of eight each."""
        return self.block_x // 8


LEAST = Config(block_y=2, block_x=8, warps_m=1, warps_n=1)


def constraints(problem: Problem, target: tvm.target.Target) -> dict[str, Callable[[Config], bool]]:
    """Return the tests that a configuration must pass, by name."""
    workload, gpu = problem.workload, gpu_of(target)
    max_threads = int(target.attrs["max_threads_per_block"])
    height, width = workload.output_size

    def whole_matrices(config: Config) -> bool:
        return config.block_y % (2 * config.warps_m) == 0 and config.block_x % 8 == 0

    def whole_images(config: Config) -> bool:
        """Return whether all blocks have as many images, which TVM could not tell of a batch that it does not know."""
        return workload.batch % config.images == 0 and ("batch" not in problem.open_sizes or config.images == 1)

    def threads(config: Config) -> bool:
        return config.threads <= max_threads

    def registers(config: Config) -> bool:
        """Return whether four warps at a time, one in each quarter of a multiprocessor, have their registers."""
        most = min(MOST_REGISTERS, REGISTERS // ceil_to(config.threads, QUARTERS * WARP))
        return registers_of(workload, config) <= most

    def straight_line(config: Config) -> bool:
        return instructions(workload, config) <= MOST_UNROLLED

    def shared_memory(config: Config) -> bool:
        return shared_bytes(workload, config) + BLOCK_BYTES <= gpu.shared_bytes

    def waste(config: Config) -> bool:
        channels = wasted(units(workload), config.warps_n)
        return wasted(height, config.block_y) * wasted(width, config.block_x) * channels <= max(
            MOST_WASTE, wasted(height, 2) * wasted(width, 8)
        )

    def grid(config: Config) -> bool:
        return blocks(workload, config) < 2**31

    return named(whole_matrices, whole_images, threads, registers, straight_line, shared_memory, waste, grid)


def has_pairs(workload: ConvWorkload) -> bool:
    """Return whether a unit is two groups, whose sums are kept apart."""
    return unit_inputs(workload) > workload.w_shape[1]


def vectors(workload: ConvWorkload) -> int:
    """Return the vectors of channels that a sum reads, under all taps."""
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
    """Return the bytes between neighbours with so many vectors: an odd number of them, which differ in their banks."""
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
