"""The tiles of the gradient of a depthwise convolution with respect to its weight in NHWC, by a model of its clocks.

A thread's turn takes the latency of its loads, and its instructions as often as the warps beside it leave it a turn.
The constants were fitted to some 150 kernels on an H100.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from tvmconv.compute import ChannelTiles
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu

from ...space import ceil_div, divisors
from ..machine import SECTOR, WARP

LANES = 64
"""The most neighbouring threads with neighbouring channels: others have other pixels."""

LEAST_BLOCK = 128
"""The least threads of a block, if there is room for so many."""

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
"""The most rows and columns of one that has all of them."""

REMAINDER = 12
"""The registers for the tests of tiles that a plane does not divide into."""

CROWDS = ((112, 512), (140, 384))
"""The most numbers of a thread where so many threads share a multiprocessor, of 128 and of 168 registers each."""

FEWEST = 256
"""The threads that share one in any case, of 255 registers each."""

WAVES = 3
"""The most blocks that follow one another where one is."""

LATENCY, FINISH, PART = 1500, 1000, 4
"""The clocks until what a turn reads is there, those of the sums of a block, and of each part in the second kernel."""

WAIT = 2
"""The least clocks from one instruction of a warp to its next."""

PARTS_EACH = 32
"""The parts that a thread of the second kernel adds up, if there are no more than `ADDERS` times as many."""

ADDERS = 16
"""The most threads of the second kernel for a tap of a channel."""


class WeightTiles(NamedTuple):
    """The shares of blocks and threads in the gradient with respect to a weight."""

    vector: int
    """The channels of a thread."""
    lanes: int
    """The neighbouring threads with neighbouring channels."""
    tiles: ChannelTiles
    resident: int
    """The blocks that share a multiprocessor and its registers."""
    ahead: bool
    """True to read a tile's whole window at once, else row by row."""


class _Tile(NamedTuple):
    """A tile of a thread, and what it takes."""

    vector: int
    rows: int
    columns: int
    instructions: int
    numbers: int
    ahead: bool


def weight_tiles(problem: Problem, gpu: Gpu) -> WeightTiles:
    """Return the tiles of the least clocks."""
    workload = problem.workload
    found = (each for tile in _tiles(workload) for each in _divisions(workload, tile, gpu))
    return min(found, key=lambda each: each[0])[1]


def adders(parts: int) -> int:
    """Return the threads of the second kernel that add up so many parts of a tap of a channel."""
    return next(count for count in (1, 2, 4, 8, ADDERS) if parts <= PARTS_EACH * count or count == ADDERS)


def _tiles(workload: ConvWorkload) -> Iterator[_Tile]:
    """Yield the tiles whose numbers find room in registers; one of a pixel always is among them."""
    height, width = workload.output_size
    for vector in (4, 2, 1):
        if workload.out_channels % vector:
            continue
        for rows in _sides(height, ROWS, WHOLE_ROWS):
            for columns in _sides(width, COLUMNS, WHOLE_COLUMNS):
                tile = _tile(workload, vector, rows, columns)
                is_dilated = any(
                    size > 1 and step > 1 for size, step in zip((rows, columns), workload.dilation, strict=True)
                )
                fits = tile.numbers <= ROOM and vector * rows * columns * prod(workload.kernel) <= UNROLLED
                if vector == rows == columns == 1 or (fits and not is_dilated):
                    yield tile


def _sides(size: int, most: int, most_whole: int) -> set[int]:
    """Return the numbers of rows, or columns, of tiles."""
    return {*range(1, min(size, most) + 1), *([size] if size <= most_whole else [])}


def _tile(workload: ConvWorkload, vector: int, rows: int, columns: int) -> _Tile:
    """Return a tile with the instructions and the registers of a thread.

    A tile of all rows, or columns, of a plane has no products with the zeros around it, and reads none. Of all rows it
    goes down, and forgets those that it has added up.
    """
    shape = ChannelTiles(rows, columns, parts=1, threads=1)
    taps, window, is_whole = prod(workload.kernel), shape.window(workload), shape.whole(workload)
    read, products = [], vector
    for axis, size in enumerate((rows, columns)):
        there = (workload.height, workload.width)[axis]
        stride, before, kernel = workload.stride[axis], workload.padding[axis], workload.kernel[axis]
        inside = (0 <= first * stride + tap - before < there for first in range(size) for tap in range(kernel))
        read.append(min(window[axis], there) if is_whole[axis] else window[axis])
        products *= sum(inside) if is_whole[axis] else size * kernel
    own = min(rows, workload.kernel[0] + AHEAD) if is_whole[0] else rows
    loads = rows * columns + prod(read)
    converted = vector if workload.itemsize < 4 else 0
    instructions = products + loads * (vector + converted + 2)  # each load has its address, each element its test
    divides = all(all_of % size == 0 for size, all_of in zip((rows, columns), workload.output_size, strict=True))
    numbers = vector * (taps + own * columns + 2 * read[1]) + read[1] + (0 if divides else REMAINDER)
    loaded = vector * taps + loads * max(1, vector * workload.itemsize // 4) + (0 if divides else REMAINDER)
    return _Tile(vector, rows, columns, instructions, numbers, loaded <= LOADED)


def _divisions(workload: ConvWorkload, tile: _Tile, gpu: Gpu) -> Iterator[tuple[float, WeightTiles]]:
    """Yield the ways to divide all tiles among threads, blocks and their turns, each behind its clocks."""
    vector, rows, columns, instructions, numbers, ahead = tile
    height, width = workload.output_size
    all_tiles = workload.batch * ceil_div(height, rows) * ceil_div(width, columns)
    known = divisors(workload.out_channels // vector, LANES)
    lanes = max((size * vector * workload.itemsize % SECTOR == 0, size) for size in known)[1]
    groups = workload.out_channels // (vector * lanes)
    together = next((count for limit, count in CROWDS if numbers <= limit), FEWEST)
    staged = STAGED_BYTES // (4 * vector * lanes * workload.kernel[1])
    most = max(1, min(together // lanes, TILE_THREADS, staged))
    for threads in range(max(1, min(LEAST_BLOCK // lanes, most)), most + 1):
        warps = ceil_div(threads * lanes, WARP)
        resident = max(1, together // (warps * WARP))
        for waves in range(1, WAVES + 1):
            turns = ceil_div(all_tiles, threads * max(1, waves * resident * gpu.multiprocessors // groups))
            parts = ceil_div(all_tiles, threads * turns)
            parts = ceil_div(parts, adders(parts)) * adders(parts)  # the threads that add up have the same control flow
            blocks = parts * groups
            busy = min(resident, ceil_div(blocks, gpu.multiprocessors))
            turn = LATENCY + instructions * max(WAIT, busy * warps / 4)
            clocks = ceil_div(blocks, resident * gpu.multiprocessors) * (turns * turn + FINISH) + PART * parts
            shares = ChannelTiles(rows, columns, parts, threads)
            yield clocks, WeightTiles(vector, lanes, shares, resident, ahead)
