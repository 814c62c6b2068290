"""The part of a product that is in the registers of each thread, as tensor cores expect it.

Tensor cores distribute 8 x 8 matrices over the threads of a warp as the PTX manual says of `mma.m16n8k16` and `wgmma`
(section "Matrix Fragments"): thread (r, q) of 8 x 4 has two neighbouring columns of row r, and of row r + 8. That order
of registers is made of axes here: row `m = (((warp * I + i) * W + w) * 2 + h) * 8 + r` and column
`n = ((warp * J + j) * 4 + q) * 2 + e` of a block's product, where W warps work on one instruction.

The columns of a product may be output channels in another order than that of the tile in memory, for which their
weights are laid out: see `FragmentTile.gathered`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, TypeVar

_Of = TypeVar("_Of")

GATHERED = 16
"""The number of output channels in two matrices, whose order changes where they are gathered."""


@dataclass(frozen=True)
class FragmentTile:
    """A block's tile of the product, and the part of it that is in the registers of each of its threads.

    Its rows are pixels and its columns output channels, or the other way round.
    """

    warps_m: int
    """The number of groups of `width` warps along the rows."""
    warps_n: int
    """The number of groups of `width` warps along the columns."""
    width: int
    """The number of warps that work on one instruction: 4 for `wgmma`, 1 for `mma`."""
    tiles_m: int
    """The number of instructions of a group of warps along the rows; each has `16 * width` rows."""
    tiles_n: int
    """The number of matrices of 8 columns of a group of warps along the columns."""
    channel_rows: bool = False
    """True if the rows are output channels, and the columns pixels."""
    gathered: bool = False
    """True if the four columns that a thread has in two matrices are neighbouring output channels, which it stores at
    once: channel `c` of sixteen is column `c // 4 * 2 + c % 2` of matrix `c // 2 % 2`."""

    @property
    def block_m(self) -> int:
        """The number of pixels of a block."""
        return prod(self.pixels)

    @property
    def block_n(self) -> int:
        """The number of output channels of a block."""
        return prod(self.channels)

    @property
    def rows(self) -> tuple[int, ...]:
        """The extents of the axes that a row of the tile is split into."""
        return self.warps_m, self.tiles_m, self.width, 2, 8

    @property
    def columns(self) -> tuple[int, ...]:
        """The extents of the axes that a column of the tile is split into."""
        if self.gathered:
            return self.warps_n, self.tiles_n // 2, 4, 4
        return self.warps_n, self.tiles_n, 4, 2

    @property
    def pixels(self) -> tuple[int, ...]:
        """The extents of the axes that a pixel of the tile is split into."""
        return self.transposed(self.rows, self.columns)[0]

    @property
    def channels(self) -> tuple[int, ...]:
        """The extents of the axes that an output channel of the tile is split into."""
        return self.transposed(self.rows, self.columns)[1]

    @property
    def factors(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of the axes of the pixels, and of those of the output channels, in a chunk of each factor."""
        return self.transposed(self.rows, (self.warps_n, self.tiles_n, 8))

    @property
    def registers(self) -> tuple[int, ...]:
        """The extents of the axes of a block's product: three of a warp, two of its lanes, four of registers."""
        return self.warps_m, self.warps_n, self.width, 8, 4, self.tiles_m, self.tiles_n, 2, 2

    def register(self, row: Sequence[Any], column: Sequence[Any]) -> tuple[Any, ...]:
        """Return the index in the product of a row and a column, given as indices on `rows` and `columns`."""
        (wm, i, v, h, r), (wn, j, q, e) = row, column
        if self.gathered:
            j, e = j * 2 + e // 2, e % 2
        return wm, wn, v, r, q, i, j, h, e

    def channel_at(self, column: Any) -> Any:
        """Return the output channel of a column of the product, given by its number."""
        if not self.gathered:
            return column
        matrix, q, e = index_of(column, (2, 4, 2))
        return column // GATHERED * GATHERED + row_major_number((q, matrix, e), (4, 2, 2))

    def transposed(self, first: _Of, second: _Of) -> tuple[_Of, _Of]:
        """Return values for (rows, columns) as values for (pixels, output channels), or the other way round."""
        return (second, first) if self.channel_rows else (first, second)


def row_major_number(index: Sequence[Any], extents: Sequence[int]) -> Any:
    """Return the row-major number of an index on axes of these extents."""
    return reduce(lambda outer, axis: outer * axis[1] + axis[0], zip(index, extents, strict=True), 0)


def index_of(number: Any, extents: Sequence[int]) -> list[Any]:
    """Return the index, on axes of these extents, that has a row-major number."""
    inner = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    return [number // size % extent for size, extent in zip(inner, extents, strict=True)]
