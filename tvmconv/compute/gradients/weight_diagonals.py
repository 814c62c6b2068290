"""The gradient of a depthwise convolution with respect to its weight for tensor cores, from diagonals of a product.

For a row r of taps let `P[j, v] = sum over n, y of X[n, y + r, j] * dY[n, y, v]`, a product of matrices whose terms are
the rows y of all images. The gradient of tap (r, s) is the sum of P along a diagonal, `j - v = s - left`. So tiles of P
that lie along a diagonal are added to the same sums, and those without a tap are left out.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..depthwise.bands import EIGHT, LEAST_COPY, VECTOR_BYTES
from .weight import Shares, added_up, placeholders

TILE = 16
"""The number of columns of x in a tile."""


class DiagonalTiles(NamedTuple):
    """The division of a block's work, all taps of a channel, among warps, and the size of chunks in shared memory."""

    groups: int
    """The number of groups of warps; each group has other rows of taps."""
    shares: int
    """The number of warps in a group: they have the same rows of taps, each for other images."""
    pairs: int
    """The number of pairs of images that a warp has in a chunk; in half precision it multiplies rows of both images of
    a pair at once."""
    rows: int
    """The number of rows of dy in a chunk, a multiple of eight."""
    ahead: int
    """The number of chunks of images that are copied ahead."""
    parts: int
    """The number of blocks that share the images of a channel."""

    @property
    def warps(self) -> int:
        """The number of warps of a block."""
        return self.shares * self.groups

    @property
    def images(self) -> int:
        """The number of images in a chunk."""
        return 2 * self.pairs * self.shares

    def block_r(self, workload: ConvWorkload) -> int:
        """Return the number of rows of taps whose sums a warp has."""
        return -(-workload.kernel[0] // self.groups)

    def bands(self, workload: ConvWorkload) -> int:
        """Return the number of chunks that the rows of a plane are cut into."""
        return -(-workload.output_size[0] // self.rows)

    def lines(self, workload: ConvWorkload) -> int:
        """Return the number of rows of x that a chunk has of an image.

        They are the rows that windows read, or, where a chunk has whole planes, the rows of the plane and a row of
        zeros that stands for all rows outside.
        """
        return workload.height + 1 if self.bands(workload) == 1 else self.rows + workload.kernel[0] - 1


def padded_columns(width: int) -> int:
    """Return the number of columns of a row in shared memory: `width` rounded up to whole vectors of eight."""
    return -(-width // EIGHT) * EIGHT


def products(workload: ConvWorkload) -> tuple[tuple[int, int], ...]:
    """Return the tiles of P with elements of taps: the numbers of their 16 columns of x and their 8 columns of dy."""
    first = -workload.padding[1]
    return _nonzero_tiles(workload.width, workload.output_size[1], range(first, first + workload.kernel[1]))


@lru_cache(maxsize=64)  # a model asks for each of thousands of tiles
def _nonzero_tiles(width: int, dy_width: int, taps: range) -> tuple[tuple[int, int], ...]:
    """Return the tiles (m, n) in which a column of x less a column of dy is one of `taps`."""

    def meets_taps(m: int, n: int) -> bool:
        last, last_dy = min((m + 1) * TILE, width) - 1, min((n + 1) * EIGHT, dy_width) - 1
        return last - n * EIGHT >= taps[0] and m * TILE - last_dy <= taps[-1]

    tiles, eights = range(-(-width // TILE)), range(-(-dy_width // EIGHT))
    return tuple((m, n) for m in tiles for n in eights if meets_taps(m, n))


def diagonals(workload: ConvWorkload) -> range:
    """Return the range of diagonals of the tiles of `products`: columns of x less columns of dy, in eights."""
    kept_diagonals = [2 * m - n for m, n in products(workload)]
    return range(min(kept_diagonals, default=0), max(kept_diagonals, default=-1) + 1)


def copied_lanes(width: int, itemsize: int) -> int:
    """Return the number of columns that are copied at once, in rows of `width` columns."""
    return gcd(VECTOR_BYTES // itemsize, width)


def is_plain(width: int, itemsize: int) -> bool:
    """Return whether rows of `width` columns go through registers, as no asynchronous copy is so short."""
    return copied_lanes(width, itemsize) * itemsize < LEAST_COPY


def weight_gradient_on_diagonals(workload: ConvWorkload, tiles: DiagonalTiles) -> list[te.Tensor]:
    """Return the TE definition, in the stages "lines", "given", "product", "squares", "sums" and those of `added_up`.

    Returns dy (N, C, Ho, Wo), x (N, C, H, W) and the gradient (C, 1, R, S), for a stride and a dilation of 1. "lines"
    and "given" are rows of x and of dy with zeros around them: (C, part, turn, image, row, vector, lane). Chunks of
    images, and of rows, are numbered, and dealt to parts first, then to turns. "product" has the sums in the order of
    the registers of tensor cores: (C, part, share, group, row of taps, diagonal, half, column of x, pair of columns of
    dy, column of a pair), and "squares" is a copy of it.
    """
    dy, x = placeholders(workload)
    (top, left, _, _), channels, kr = workload.padding, workload.in_channels, workload.kernel[0]
    groups, shares, pairs, rows, _, parts = tiles
    block_r = tiles.block_r(workload)
    kept_diagonals = diagonals(workload)
    first = top if tiles.bands(workload) == 1 else 0  # the row of windows that is staged first
    lines = _staged(x, "lines", workload, tiles, range(first - top, first - top + tiles.lines(workload)))
    given = _staged(dy, "given", workload, tiles, range(rows))
    turn, image = te.reduce_axis((0, lines.shape[2]), name="turn"), te.reduce_axis((0, 2 * pairs), name="image")
    eights = -(-workload.output_size[1] // EIGHT)
    y, eight = te.reduce_axis((0, rows), name="y"), te.reduce_axis((0, eights), name="eight")

    def at(tensor: te.Tensor, k: Any, p: Any, share: Any, line: Any, column: Any) -> tirx.PrimExpr:
        lanes = tensor.shape[-1]
        index = k, p, turn, share * (2 * pairs) + image, line, column // lanes, column % lanes
        return tensor[index].astype("float32")

    def multiply(*index: Any) -> tirx.PrimExpr:
        k, p, share, group, r, diagonal, half, i, pair, odd = index
        line, tile = y + group * block_r + r - first, eight + diagonal + kept_diagonals[0]
        column = (tile + half) * EIGHT + i
        tests = [tile >= 0, tile % 2 == 0, column < padded_columns(workload.width)]
        tests += [group * block_r + r < kr, line >= 0, line < tiles.lines(workload)]
        term = at(lines, k, p, share, line, column) * at(given, k, p, share, y, eight * EIGHT + pair * 2 + odd)
        return te.sum(tirx.if_then_else(tirx.all(*tests), term, tirx.const(0, "float32")), axis=[turn, image, y, eight])

    shape = (channels, parts, shares, groups, block_r, len(kept_diagonals), 2, EIGHT, EIGHT // 2, 2)
    product = te.compute(shape, multiply, name="product")
    squares = te.compute(shape, lambda *index: product[index], name="squares")

    def tap_term(k: Any, p: Any, _ro: Any, _so: Any, share: Any, column_of_tile: Any, r: Any, s: Any) -> tirx.PrimExpr:
        """Return the term of tap (r, s) for one column of dy in eight, from one half of a tile's columns of x."""
        half, v = column_of_tile // EIGHT, column_of_tile % EIGHT
        column = s - left + v
        diagonal = column // EIGHT - half - kept_diagonals[0]
        which = k, p, share, r // block_r, r % block_r, diagonal, half, column % EIGHT, v // 2, v % 2
        inside = tirx.all(diagonal >= 0, diagonal < len(kept_diagonals))
        return tirx.if_then_else(inside, squares[which], tirx.const(0, "float32"))

    tap_shares = Shares(groups * block_r, workload.kernel[1], shares, parts)
    sums = te.compute((channels, parts, 1, 1, shares, TILE, *tap_shares[:2]), tap_term, name="sums")
    return [dy, x, added_up(sums, workload, tap_shares)]


def _staged(tensor: te.Tensor, name: str, workload: ConvWorkload, tiles: DiagonalTiles, rows: range) -> te.Tensor:
    """Return the stage `name`: `rows` of each image, relative to a chunk's first row, with zeros outside the image.

    A tensor that goes through registers has a stage "near_<name>" first, read at clamped indices without conditions.
    """
    channels, (height, width) = workload.in_channels, map(int, tensor.shape[2:])
    lanes, zero = copied_lanes(width, workload.itemsize), tirx.const(0, tensor.dtype)
    images, bands = tiles.images, tiles.bands(workload)
    turns = ((workload.batch + images - 1) // images * bands + tiles.parts - 1) // tiles.parts
    shape = (channels, tiles.parts, turns, images, len(rows), padded_columns(width) // lanes, lanes)

    def image_and_row(p: Any, turn: Any, image: Any, line: Any) -> tuple[Any, Any]:
        number = turn * tiles.parts + p
        return number // bands * images + image, number % bands * tiles.rows + line + rows[0]

    def nearest(k: Any, p: Any, turn: Any, image: Any, line: Any, vector: Any, _lane: Any) -> tirx.PrimExpr:
        n, row = image_and_row(p, turn, image, line)
        row = tirx.max(tirx.min(row, height - 1), 0)
        return tensor[tirx.min(n, workload.batch - 1), k, row, tirx.min(vector, width - 1)]

    near = te.compute(shape, nearest, name=f"near_{name}") if is_plain(width, workload.itemsize) else None

    def element(*index: Any) -> tirx.PrimExpr:
        k, p, turn, image, line, vector, lane = index
        n, row = image_and_row(p, turn, image, line)
        inside = tirx.all(n < workload.batch, row >= 0, row < height, vector < width // lanes)
        if near is not None:
            return tirx.Select(inside, near[index], zero)
        return tirx.if_then_else(inside, tensor[n, k, row, vector * lanes + lane], zero)

    return te.compute(shape, element, name=name)
