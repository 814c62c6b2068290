"""The knobs of depthwise convolutions of whole planes on tensor cores, and the resources that a block takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tvmconv.compute.depthwise.bands import BAND, EIGHT, VECTOR_BYTES
from tvmconv.compute.depthwise.planes import copied_runs, eights, neighbours, side_by_side
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to
from ..machine import REUSED, SHARED_ALIGNMENT

OTHER_REGISTERS = 44
"""The registers of a thread besides its sums and its matrices of taps: for columns of the input and addresses."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes whole planes, one channel in each of its warps, or two neighbours in NHWC."""

    images: int
    """The number of images whose planes of its channels a warp computes together."""
    warps: int
    """The number of warps of a block."""

    @property
    def threads(self) -> int:
        return self.warps * WARP


def channels_of(workload: ConvWorkload, config: Config) -> int:
    """Return the number of neighbouring channels of a block."""
    return config.warps * neighbours(workload)


def pairs(workload: ConvWorkload) -> list[tuple[int, int]]:
    """Return the pairs (band, step) in which sixteen columns of outputs read sixteen columns of the input."""
    _, bands = eights(workload)
    steps, (_, left, _, _), (_, taps) = ceil_div(workload.width, BAND), workload.padding, workload.kernel
    every = [(band, step) for band in range(bands) for step in range(steps)]
    return [(band, step) for band, step in every if -BAND < (step - band) * BAND + left < taps + BAND - 1]


def lines_of(workload: ConvWorkload) -> range:
    """Return the rows of the input that are loaded, counted from the first row of the first output's window.

    Rows before the first of these are padding alone.
    """
    (rows, _), (top, *_) = eights(workload), workload.padding
    first = max(0, top - rows * (EIGHT - 1) - (rows - 1))
    return range(first, min(workload.kernel[0] + rows - 1, top + workload.height))


def products(workload: ConvWorkload, config: Config) -> int:
    """Return the products of a warp for a row of the input, with all rows of taps that it is under."""
    rows, _ = eights(workload)
    planes = config.images // side_by_side(workload, config.images) * neighbours(workload)
    return planes * rows * len(pairs(workload))


def sums_of(workload: ConvWorkload, config: Config) -> int:
    """Return the number of sums of a thread."""
    planes = config.images // side_by_side(workload, config.images) * neighbours(workload)
    return 4 * planes * prod(eights(workload))


def matrices(workload: ConvWorkload) -> list[int]:
    """Return for each matrix of taps the distance from output columns to input columns, in sixteens."""
    return sorted({step - band for band, step in pairs(workload)})


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers that a thread takes."""
    rows, _ = eights(workload)
    of_matrix = 4 // side_by_side(workload, config.images) ** 2
    taps = rows * len(matrices(workload)) * of_matrix * neighbours(workload)
    factors = ceil_div(workload.width, BAND) * sums_of(workload, config) // 2 if in_registers(workload) else 0
    return sums_of(workload, config) + factors + taps + OTHER_REGISTERS


def in_registers(workload: ConvWorkload) -> bool:
    """Return whether planes are loaded to registers once: four lanes then have a row, and the last four zeros."""
    return eights(workload)[0] == 1 and workload.height < EIGHT


def pixel_lanes(config: Config) -> int:
    """Return the elements in shared memory from a pixel to the next in NHWC: an odd number of words, for the banks."""
    return (config.warps | 1) * 2


def image_elements(workload: ConvWorkload, config: Config) -> int:
    """Return the elements in shared memory of an image's planes."""
    pixels, vectors, lanes = copied_runs(workload, channels_of(workload, config))
    return pixels * pixel_lanes(config) if workload.layout == "NHWC" else vectors * lanes


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the shared memory of a block in bytes: its taps, and its planes, whose memory its outputs reuse."""
    channels = channels_of(workload, config)
    taps = channels * prod(workload.kernel) * workload.itemsize
    pixel = pixel_lanes(config) if workload.layout == "NHWC" else channels
    outputs = config.images * pixel * prod(workload.output_size) * workload.output_storage.itemsize
    planes = config.images * image_elements(workload, config) * workload.itemsize
    alone = REUSED * outputs < min(taps, planes)  # then outputs have separate memory
    regions = sorted([taps, planes, outputs] if alone else [taps, max(planes, outputs)])
    return sum(ceil_to(size, SHARED_ALIGNMENT) for size in regions[:-1]) + regions[-1]


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    return workload.batch // config.images * (workload.in_channels // channels_of(workload, config))


def store_lanes(workload: ConvWorkload, config: Config) -> int:
    """Return the number of outputs in a vector that is stored."""
    run = channels_of(workload, config) * (1 if workload.layout == "NHWC" else prod(workload.output_size))
    return gcd(run, VECTOR_BYTES // workload.output_storage.itemsize)
