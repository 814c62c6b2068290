"""The order of a tensor's dimensions in memory, as a value: NCHW, NHWC, or NCHW in blocks of channels.

`StridedRows` says where the rows of matrices lie in a larger tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

from .errors import InvalidArgumentError

BLOCKED = re.compile(r"NCHW([2-9]|[1-9][0-9]+)c")

ORDERS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "KCRS": (0, 1, 2, 3), "KRSC": (0, 2, 3, 1)}
"""The axes of (N, C, H, W), or of a weight (K, C / groups, R, S), in the order in which a layout has them."""

WEIGHT_LAYOUTS = ("KCRS", "KRSC")
"""The names of layouts of weights; KRSC is what torch calls channels_last."""


@dataclass(frozen=True)
class Layout:
    """A layout of tensors that are logically (N, C, H, W), or (K, C / groups, R, S) for a weight.

    An element has four logical indices, such as (n, c, h, w), and its indices in memory, one for each dimension there.
    """

    name: str
    """The name of the kind of layout: a key of `ORDERS`, or "NCHWc" for blocks of any size."""
    order: tuple[int, int, int, int]
    block: int = 1
    """The number of neighbouring channels that are the last dimension; 1 for a layout without blocks."""

    @property
    def channels(self) -> int:
        """The dimension in memory that is the channel, or the block of channels."""
        return self.order.index(1)

    @property
    def spatial(self) -> tuple[int, int]:
        """The dimensions in memory that are the row and the column."""
        return self.order.index(2), self.order.index(3)

    def shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in memory of a tensor of a logical shape."""
        extents = self.memory_index(*logical)
        return extents if self.block == 1 else (*extents[:-1], self.block)

    def memory_index(self, *logical: Any) -> tuple[Any, ...]:
        """Return the indices in memory for logical indices, which may be expressions of TVM."""
        if self.block == 1:
            return tuple(logical[axis] for axis in self.order)
        n, c, *rest = logical
        return (n, c // self.block, *rest, c % self.block)

    def logical(self, *memory: Any) -> tuple[Any, Any, Any, Any]:
        """Return the logical indices for indices in memory."""
        if self.block == 1:
            n, c, h, w = (memory[self.order.index(axis)] for axis in range(4))
            return n, c, h, w
        n, c, h, w, inner = memory
        return n, c * self.block + inner, h, w


@cache
def data_layout(name: str) -> Layout:
    """Return the layout of x, an output or a residual by its name; raise `ValueError` for an unknown name."""
    if name in ("NCHW", "NHWC"):
        return Layout(name, ORDERS[name])
    if blocked := BLOCKED.fullmatch(name):
        return Layout("NCHWc", ORDERS["NCHW"], int(blocked[1]))
    raise ValueError(f"no layout is called {name!r}")


def channel_block(layout: str) -> int:
    """Return the number of channels in a block of a layout; 1 for one without blocks."""
    return data_layout(layout).block


def has_channels_last(layout: str) -> bool:
    """Return whether neighbouring channels of a pixel are adjacent in memory in a layout."""
    return data_layout(layout).order != ORDERS["NCHW"] or channel_block(layout) > 1


@cache
def weight_layout(name: str) -> Layout:
    """Return the layout of a weight by its name, one of `WEIGHT_LAYOUTS`."""
    return Layout(name, ORDERS[name])


def require_layout(name: str, layout: str, channels: int) -> None:
    """Raise `InvalidArgumentError` unless a layout exists, with blocks that divide `channels` channels."""
    expected = f"'NCHW', 'NHWC', or such as 'NCHW8c', in blocks that divide {channels} channels"
    try:
        block = data_layout(layout).block
    except ValueError:
        raise InvalidArgumentError(name, layout, expected) from None
    if channels % block:
        raise InvalidArgumentError(name, layout, expected)


class StridedRows(NamedTuple):
    """The position of the rows of matrices in a tensor, a row's elements being contiguous.

    G matrices of M rows and K elements a row are (1, G, M, 1, K) or (G * M, 1, 1, K).
    """

    elements: int
    """The number of elements of the tensor."""
    first: int
    """The index of the element that the first row begins with."""
    batch: tuple[tuple[int, int], ...]
    """The axes that count the matrices, the outermost first: for each its extent, and the elements from one index to
    the next."""
    row_stride: int
    """The elements from the beginning of a row to that of the next one."""
    rows: int
    """The number of rows of a matrix that exist: further rows are zeros."""

    @classmethod
    def whole_tensor(cls, matrices: int, rows: int, columns: int) -> StridedRows:
        """Return the rows of matrices that fill a whole tensor."""
        return cls(matrices * rows * columns, 0, ((matrices, rows * columns),), columns, rows)

    def at(self, matrix: Any, row: Any, element: Any) -> Any:
        """Return the index of an element in the tensor, as an expression."""
        index = self.first + row * self.row_stride + element
        for count, step in reversed(self.batch[1:]):
            index, matrix = index + matrix % count * step, matrix // count
        return index + matrix * self.batch[0][1]

    def shape(self, smaller: Sequence[Any]) -> tuple[int]:
        """Return the shape of the larger tensor, given that of the matrices."""
        return (self.elements,)

    def indices_in_larger(self, shape: Sequence[Any], indices: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the index in the larger tensor of an element of matrices of `shape`, and its row's test or None."""
        if len(indices) == 5:
            _, matrix, row, column, element = indices  # some templates take all rows of an image as one
            row, limit = row + column, int(shape[2])
        else:
            number, *_, element = indices
            limit = int(shape[0]) // prod(count for count, _ in self.batch)
            matrix, row = number // limit, number % limit
        return [self.at(matrix, row, element)], None if limit <= self.rows else row < self.rows
