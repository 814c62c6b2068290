"""The tiles of a gradient on diagonals, and the counts of their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import tvm

from tvmconv.compute import DiagonalTiles
from tvmconv.compute.depthwise.bands import EIGHT, LEAST_COPY
from tvmconv.compute.gradients.weight_diagonals import TILE, copied_lanes, diagonals, is_plain, padded_columns, products
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import WARP, Gpu, gpu_of

from ...space import ceil_div, ceil_to
from ..machine import BLOCK_BYTES, LINE, PRODUCTS, QUARTERS, REGISTERS, REUSED, SHARED_ALIGNMENT
from ..model import Counts, memory_bytes
from . import parts_bytes

OTHER_REGISTERS, MAX_REGISTERS = 28, 208
"""The registers of a thread besides its sums and its factors, and the most registers of all by `registers_of`, with
which nothing is spilled."""

FACTORS = 4
"""The number of first factors that are in registers together."""

BANDS = (1, 2, 3, 4, 6, 8, 12, 16)
"""The numbers of chunks of rows that planes are cut into."""

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of blocks for each multiprocessor."""

MAX_WARPS = 16
"""The most warps of a block."""

SHARES, PAIRS, AHEAD = (1, 2, 4, 8), (1, 2, 4), (1, 2, 3)
"""The values of the knobs that are tried."""

COPYING, OF_ROW, OF_SUM = 6.0, 8.0, 10.0
"""The instructions of a thread for a copy, for a row of taps, and for an element of a diagonal that is added up."""

SPLITTING = 24.0
"""The instructions of a thread that read four float32 numbers and take each apart into two TF32 numbers."""

UNHINDERED = 0.25
"""The share of a thread's instructions for copies that wait for the instruction before; others belong to other
copies."""

PLAIN_TURNS = 3.0
"""The number of turns for each further wait for memory, where copies go through a thread's registers."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    groups: int
    """The number of groups of warps, each with other rows of taps."""
    shares: int
    """The number of warps in a group, which have the same rows of taps, each for other images."""
    pairs: int
    """The number of pairs of images of a warp that are in shared memory together."""
    rows: int
    """The number of rows of dy that are in shared memory together, a multiple of eight."""
    ahead: int
    """The number of chunks of images that are copied ahead."""
    parts: int
    """The number of blocks that share the images of a channel."""

    @property
    def threads(self) -> int:
        return self.groups * self.shares * WARP

    @property
    def tiles(self) -> DiagonalTiles:
        """The knobs as the definition takes them."""
        return DiagonalTiles(self.groups, self.shares, self.pairs, self.rows, self.ahead, self.parts)


def heights(workload: ConvWorkload) -> list[int]:
    """Return the numbers of rows of a chunk that cut planes into `BANDS`."""
    return sorted({ceil_to(ceil_div(workload.output_size[0], bands), EIGHT) for bands in BANDS})


def chunks(workload: ConvWorkload, tiles: DiagonalTiles) -> int:
    """Return the number of chunks of a channel, of images and of rows."""
    return ceil_div(workload.batch, tiles.images) * tiles.bands(workload)


def candidates(workload: ConvWorkload, gpu: Gpu, fits: Callable[[Config], bool]) -> Iterator[Config]:
    """Yield configurations that fit, with numbers of parts that give each multiprocessor about one of `BLOCKS`."""
    kernel = workload.kernel[0]
    for block_r in sorted({ceil_div(kernel, groups) for groups in range(1, MAX_WARPS + 1)}):
        groups = ceil_div(kernel, block_r)
        for shares, rows, pairs, ahead in product(SHARES, heights(workload), PAIRS, AHEAD):
            one = Config(groups, shares, pairs, rows, ahead, parts=1)
            tiles = one.tiles
            mostly_empty = tiles.images >= 2 * (workload.batch + 1)
            if tiles.warps > MAX_WARPS or mostly_empty or not fits(one):
                continue
            limit = 2 * resident_blocks(workload, tiles, gpu)
            counts = [count for count in BLOCKS if count <= limit]
            parts = {1, *(count * gpu.multiprocessors // workload.in_channels for count in counts)}
            yield from (replace(one, parts=count) for count in sorted(parts) if 0 < count <= chunks(workload, tiles))


def of_three_products(workload: ConvWorkload) -> bool:
    """Return whether products are in float32, each of which is three of TF32 numbers."""
    return workload.dtype == "float32"


def line_bytes(width: int, itemsize: int) -> int:
    """Return the bytes in shared memory from one row of `width` columns to the next: an odd number of vectors of 8."""
    return (padded_columns(width) // EIGHT | 1) * EIGHT * itemsize


def shared_bytes(workload: ConvWorkload, tiles: DiagonalTiles) -> int:
    """Return the shared memory of a block in bytes, where TVM reuses the memory of chunks for the sums.

    Sums get the memory of one array of up to `REUSED` times their size, or else of smaller arrays, the largest first:
    of all of these, but in float32, the type of sums, of one alone. In float32 the block's sums come before those of
    warps.
    """
    of_row = [line_bytes(columns, workload.itemsize) for columns in (workload.width, workload.output_size[1])]
    rows, images = (tiles.lines(workload), tiles.rows), (tiles.ahead + 1) * tiles.images
    free, sums_bytes = sorted(images * count * size for count, size in zip(rows, of_row, strict=True)), []
    sums = tiles.groups * tiles.block_r(workload) * tiles.shares
    of_warps = [sums * workload.kernel[1] * 4] if tiles.shares > 1 else []
    of_block = sums * len(diagonals(workload)) * TILE * EIGHT * 4
    for size in (of_block, *of_warps) if of_three_products(workload) else (*of_warps, of_block):
        reused = [each for each in free if size <= each <= REUSED * size][:1]
        if not reused:
            for each in [each for each in reversed(free) if each < size]:
                reused += [each] if sum(reused) < size and not (reused and of_three_products(workload)) else []
        for nbytes in reused:
            free.remove(nbytes)
        sums_bytes.append(max(size, sum(reused)))
    return sum(ceil_to(each, SHARED_ALIGNMENT) for each in (*free, *sums_bytes))


def registers_of(workload: ConvWorkload, tiles: DiagonalTiles) -> int:
    """Return the registers that a thread takes."""
    first, second = ceil_div(workload.width, TILE), ceil_div(workload.output_size[1], EIGHT)
    plain = any(is_plain(columns, workload.itemsize) for columns in (workload.width, workload.output_size[1]))
    sums, factors = tiles.block_r(workload), 4 * min(first, FACTORS) + 2 * second
    if of_three_products(workload):
        sums, factors = sums + 1, 2 * factors
    others = max(factors, tiles.images if plain else 0)
    return 4 * sums * len(diagonals(workload)) + others + OTHER_REGISTERS


def resident_blocks(workload: ConvWorkload, tiles: DiagonalTiles, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by shared memory and registers."""
    by_registers = (
        QUARTERS * (REGISTERS // (QUARTERS * WARP * ceil_to(registers_of(workload, tiles), EIGHT))) // tiles.warps
    )
    by_shared = gpu.shared_bytes // (shared_bytes(workload, tiles) + BLOCK_BYTES)
    return max(1, min(by_shared, by_registers, gpu.warps // tiles.warps, gpu.blocks))


def counts(problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
    """Return the work of the kernels."""
    workload, tiles, gpu = problem.workload, config.tiles, gpu_of(target)
    (_, width), (kernel_y, kernel_x), threads = workload.output_size, workload.kernel, tiles.warps * WARP
    turns, eights = ceil_div(chunks(workload, tiles), tiles.parts), tiles.rows // EIGHT
    lines, multiplied = tiles.lines(workload), len(products(workload))
    starts = [EIGHT * eight + r - workload.padding[0] for eight in range(eights) for r in range(kernel_y)]
    whole = tiles.bands(workload) == 1
    met = sum(-EIGHT < start < workload.height for start in starts) if whole else len(starts)
    first, second = ceil_div(workload.width, TILE), ceil_div(ceil_div(width, EIGHT), 2)

    # What a chunk takes: the products of all warps, and the copies of all threads
    pairs_of_images = tiles.shares * tiles.pairs
    copying, vectors, plain = 0.0, 0.0, 0
    for rows, columns in ((lines, workload.width), (tiles.rows, width)):
        lanes = copied_lanes(columns, workload.itemsize)
        of_image = rows * padded_columns(columns) // lanes
        copying += ceil_div(of_image, threads) * tiles.images * COPYING
        vectors += of_image * tiles.images * max(lanes * workload.itemsize, LEAST_COPY) / LINE
        plain += is_plain(columns, workload.itemsize)
    of_row, of_dy, read, read_of_dy = multiplied + first + OF_ROW, second + OF_ROW, 4 * first, 4 * second
    if of_three_products(workload):  # a product of rows of two images is six instructions, and dy is read for each row
        of_row = 2 * (3 * multiplied + SPLITTING * (first + second) + OF_ROW)
        of_dy, read, read_of_dy, multiplied = 0.0, 2 * (read + read_of_dy), 0, 6 * multiplied
    issued = pairs_of_images * (met * of_row + tiles.groups * eights * of_dy) / tiles.warps + copying
    accessed = pairs_of_images * (met * read + tiles.groups * eights * read_of_dy) + vectors
    alone = tiles.pairs * eights * tiles.block_r(workload) * (of_row + OF_ROW) + copying * UNHINDERED
    finish = tiles.groups * tiles.block_r(workload) * kernel_x * tiles.shares * TILE * OF_SUM / WARP / tiles.warps
    instruction = PRODUCTS / tensor_instructions(target)["mma"].products
    return Counts(
        blocks=workload.in_channels * tiles.parts,
        resident=resident_blocks(workload, tiles, gpu),
        warps=tiles.warps,
        issued=turns * issued + finish,
        moved=memory_bytes(workload, target),
        fetched=turns * vectors * LINE,
        accessed=turns * accessed,
        multiplied=turns * pairs_of_images * met * multiplied * instruction,
        arrivals=1 + turns * (1 / tiles.ahead + plain / PLAIN_TURNS),
        serial=turns * alone + finish,
        kernels=1 + (tiles.parts > 1),
        beside=parts_bytes(workload, tiles.parts),
    )
