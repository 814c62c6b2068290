"""The part of a product that is in the registers of each thread, as tensor cores expect it.

They take matrices of 8 x 8 apart over the threads of a warp as the PTX manual says of `mma.m16n8k16` and of `wgmma`
(section "Matrix Fragments"): thread (r, q) of 8 x 4 has two neighbouring columns of row r, and of row r + 8. That order
of registers is made of axes here: row `m = (((warp * I + i) * W + w) * 2 + h) * 8 + r` and column
`n = ((warp * J + j) * 4 + q) * 2 + e` of a block's tile, where W warps work on one instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any


@dataclass(frozen=True)
class FragmentTile:
    """A block's tile of the product, and the part of it that is in the registers of each of its threads."""

    warps_m: int
    """The number of groups of `width` warps along the pixels."""
    warps_n: int
    """The number of them along the output channels."""
    width: int
    """The number of warps that work on one instruction: 4 for `wgmma`, 1 for `mma`."""
    tiles_m: int
    """The number of instructions of a group of warps along the pixels, with `16 * width` of them each."""
    tiles_n: int
    """The number of matrices of 8 output channels of a group of warps."""

    @property
    def block_m(self) -> int:
        """The number of pixels of a block."""
        return self.warps_m * self.tiles_m * self.width * 16

    @property
    def block_n(self) -> int:
        """The number of output channels of a block."""
        return self.warps_n * self.tiles_n * 8

    @property
    def rows(self) -> tuple[int, ...]:
        """The extents of the axes of a row of the tile."""
        return self.warps_m, self.tiles_m, self.width, 2, 8

    @property
    def columns(self) -> tuple[int, ...]:
        """The extents of the axes of a column of the tile."""
        return self.warps_n, self.tiles_n, 4, 2


def number(place: Sequence[Any], extents: Sequence[int]) -> Any:
    """Return the number of a place, a row-major one, on axes of these extents."""
    return reduce(lambda outer, axis: outer * axis[1] + axis[0], zip(place, extents, strict=True), 0)


def place_of(number: Any, extents: Sequence[int]) -> list[Any]:
    """Return the place with a number on axes of these extents."""
    inner = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    return [number // size % extent for size, extent in zip(inner, extents, strict=True)]
