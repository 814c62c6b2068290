"""The tiles of the gradient of a depthwise convolution by its weight in NHWC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from tvmconv.compute import ChannelTiles
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu

from ...space import ceil_div, ceil_to, divisors
from ..machine import MAX_REGISTERS, REGISTERS, SECTOR

VECTORS = (1, 2, 4)
"""The numbers of channels of a thread."""

LANES = 64
"""The most neighbouring threads with neighbouring channels: others have other pixels."""

FRACTIONS = (1, 2, 4)
"""The divisors of the most threads of a block that are tried."""

TILE_THREADS = 64
"""The most threads of a block with the same channels."""

STAGED_BYTES = 48 << 10
"""The most shared memory of a block, for a row of the sums of its threads."""

ROOM = 120
"""The most numbers of a thread: its sums, its tile, two rows of its window, and a test for each column of that."""

LOADED = 123
"""The most registers for sums, and for a tile and its window as they are loaded, of a thread that loads all at once."""

AHEAD = 4
"""The rows of dy that are in registers before their turn, where all rows of a plane are a tile."""

UNROLLED = 2800
"""The most multiply-adds of a thread that follow each other without a loop."""

ROWS, COLUMNS = 8, 4
"""The most rows and columns of a tile that does not have all of a plane."""

WHOLE_ROWS, WHOLE_COLUMNS = 32, 8
"""The most rows and columns of a tile that has all of a plane."""

REMAINDER = 12
"""The registers for the tests of tiles that a plane does not divide into."""

CROWDS = ((112, 512), (140, 384))
"""Pairs of the most numbers of a thread, and of the threads that then share a multiprocessor, with 128 and with 168
registers each."""

FEWEST = 256
"""The number of threads that share a multiprocessor in any case, with 255 registers each."""

WAVES = 3
"""The most waves of blocks on a multiprocessor."""

PARTS_OF_AN_ADDER = 32
"""The number of parts that a thread of the second kernel adds up, unless they are more than `ADDERS` times this
number."""

ADDERS = 16
"""The most threads of the second kernel for a tap of a channel."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    vector: int
    """The number of neighbouring channels of a thread."""
    threads_c: int
    """The number of threads of a block along the channels."""
    rows: int
    """The number of rows of a tile, a thread's work at a time."""
    columns: int
    """The number of columns of a tile."""
    threads_y: int
    """The number of threads of a block that share its tiles."""
    parts: int
    """The number of blocks that share the tiles of a channel."""
    ahead: bool
    """True to read a tile's whole window at once, else row by row."""

    @property
    def threads(self) -> int:
        return self.threads_c * self.threads_y

    @property
    def tiles(self) -> ChannelTiles:
        return ChannelTiles(self.rows, self.columns, self.parts, self.threads_y)


class Tile(NamedTuple):
    """A tile of a thread, and the resources that it takes."""

    vector: int
    rows: int
    columns: int
    instructions: int
    numbers: int
    ahead: bool
    """True if registers hold all that it reads at once."""


def candidates(workload: ConvWorkload, gpu: Gpu) -> Iterator[Config]:
    """Yield tiles in blocks of a few sizes, with parts such that blocks run in 1 to `WAVES` waves."""
    return (config for tile in _tiles(workload) for config in _divisions(workload, tile, gpu))


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of shared memory of a block, for a row of the sums of its threads."""
    return 4 * config.vector * config.threads * workload.kernel[1]


def registers_of(numbers: int) -> int:
    """Return the registers of a thread that holds `numbers` float32 numbers."""
    return min(MAX_REGISTERS, REGISTERS // _crowd(numbers))


def resident_blocks(config: Config, numbers: int) -> int:
    """Return the blocks that share a multiprocessor and its registers."""
    return max(1, _crowd(numbers) // ceil_to(config.threads, WARP))


def _crowd(numbers: int) -> int:
    """Return the threads that share a multiprocessor, of `numbers` float32 numbers each."""
    return next((count for limit, count in CROWDS if numbers <= limit), FEWEST)


def adders(parts: int) -> int:
    """Return the threads of the second kernel that add up `parts` sums of a tap of a channel."""
    return next(count for count in (1, 2, 4, 8, ADDERS) if parts <= PARTS_OF_AN_ADDER * count or count == ADDERS)


def _tiles(workload: ConvWorkload) -> Iterator[Tile]:
    """Yield the tiles whose numbers find room in registers; one of a pixel always is among them."""
    height, width = workload.output_size
    for vector in reversed(VECTORS):
        if workload.out_channels % vector:
            continue
        for rows in _sides(height, ROWS, WHOLE_ROWS):
            for columns in _sides(width, COLUMNS, WHOLE_COLUMNS):
                tile = tile_of(workload, vector, rows, columns)
                is_dilated = any(
                    size > 1 and step > 1 for size, step in zip((rows, columns), workload.dilation, strict=True)
                )
                fits = tile.numbers <= ROOM and vector * rows * columns * prod(workload.kernel) <= UNROLLED
                if vector == rows == columns == 1 or (fits and not is_dilated):
                    yield tile


def _sides(size: int, max_side: int, max_whole: int) -> set[int]:
    """Return the numbers of rows, or columns, of tiles."""
    return {*range(1, min(size, max_side) + 1), *([size] if size <= max_whole else [])}


@lru_cache(maxsize=1024)  # a model of thousands of configurations asks for each of a few tiles
def tile_of(workload: ConvWorkload, vector: int, rows: int, columns: int) -> Tile:
    """Return a tile with the instructions and the registers of a thread.

    A tile of all rows, or columns, of a plane has no products with the zeros around it, and reads none. In a tile of
    all rows a thread goes down the plane, and drops the rows that it has added up.
    """
    shape = ChannelTiles(rows, columns, parts=1, threads=1)
    taps, window, is_whole = prod(workload.kernel), shape.window(workload), shape.whole(workload)
    read, products = [], vector
    for axis, size in enumerate((rows, columns)):
        extent = (workload.height, workload.width)[axis]
        stride, padding, kernel = workload.stride[axis], workload.padding[axis], workload.kernel[axis]
        inside = (0 <= first * stride + tap - padding < extent for first in range(size) for tap in range(kernel))
        read.append(min(window[axis], extent) if is_whole[axis] else window[axis])
        products *= sum(inside) if is_whole[axis] else size * kernel
    rows_with_sums = min(rows, workload.kernel[0] + AHEAD) if is_whole[0] else rows
    loads = rows * columns + prod(read)
    converted = vector if workload.itemsize < 4 else 0
    instructions = products + loads * (vector + converted + 2)  # each load has its address, each element its test
    divides = all(all_of % size == 0 for size, all_of in zip((rows, columns), workload.output_size, strict=True))
    numbers = vector * (taps + rows_with_sums * columns + 2 * read[1]) + read[1] + (0 if divides else REMAINDER)
    loaded = vector * taps + loads * max(1, vector * workload.itemsize // 4) + (0 if divides else REMAINDER)
    return Tile(vector, rows, columns, instructions, numbers, loaded <= LOADED)


def all_tiles(workload: ConvWorkload, tile: Tile) -> int:
    """Return the tiles of all images, of one channel."""
    height, width = workload.output_size
    return workload.batch * ceil_div(height, tile.rows) * ceil_div(width, tile.columns)


def _divisions(workload: ConvWorkload, tile: Tile, gpu: Gpu) -> Iterator[Config]:
    """Yield the ways to divide all tiles among threads, blocks and their turns."""
    vector, count, crowd = tile.vector, all_tiles(workload, tile), _crowd(tile.numbers)
    known = divisors(workload.out_channels // vector, LANES)
    threads_c = max((size * vector * workload.itemsize % SECTOR == 0, size) for size in known)[1]
    groups = workload.out_channels // (vector * threads_c)
    staged = STAGED_BYTES // (4 * vector * threads_c * workload.kernel[1])
    max_side = max(1, min(crowd // threads_c, TILE_THREADS, staged))
    for threads_y in sorted({max(1, max_side // fraction) for fraction in FRACTIONS}):
        resident = max(1, crowd // ceil_to(threads_y * threads_c, WARP))
        for waves in range(1, WAVES + 1):
            turns = ceil_div(count, threads_y * max(1, waves * resident * gpu.multiprocessors // groups))
            parts = ceil_div(count, threads_y * turns)
            parts = ceil_to(parts, adders(parts))  # the threads that add up have the same control flow
            yield Config(vector, threads_c, tile.rows, tile.columns, threads_y, parts, tile.ahead)
