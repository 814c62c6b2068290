"""Rows of matrices that lie in a larger tensor, as strides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple


class Place(NamedTuple):
    """The place of the rows of matrices in a tensor, whose elements are one behind the other in memory.

    Matrices are (1, G, M, 1, K) or (G * M, 1, 1, K), for G of them.
    """

    elements: int
    """The number of elements of the tensor."""
    first: int
    """The element that the first row begins with."""
    batch: tuple[tuple[int, int], ...]
    """The axes that count the matrices, the outermost first: for each the number, and the elements from one place to
    the next."""
    step: int
    """The elements from the beginning of a row to that of the next one."""
    rows: int
    """The rows of a matrix that are there: others are zeros."""

    @classmethod
    def alone(cls, matrices: int, rows: int, columns: int) -> Place:
        """Return the place of rows of matrices that are a tensor of their own."""
        return cls(matrices * rows * columns, 0, ((matrices, rows * columns),), columns, rows)

    def at(self, matrix: Any, row: Any, element: Any) -> Any:
        """Return the place of an element, an expression."""
        found = self.first + row * self.step + element
        for count, step in reversed(self.batch[1:]):
            found, matrix = found + matrix % count * step, matrix // count
        return found + matrix * self.batch[0][1]

    def shape(self, own: Sequence[Any]) -> tuple[int]:
        """Return the shape of the tensor."""
        return (self.elements,)

    def found(self, own: Sequence[Any], indices: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the index of an element of matrices of a shape, and the test that its row is there, or None."""
        if len(indices) == 5:
            _, matrix, row, column, element = indices  # some templates take all rows of an image as one
            row, most = row + column, int(own[2])
        else:
            number, *_, element = indices
            most = int(own[0]) // prod(count for count, _ in self.batch)
            matrix, row = number // most, number % most
        return [self.at(matrix, row, element)], None if most <= self.rows else row < self.rows
