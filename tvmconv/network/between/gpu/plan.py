"""The rows, the columns and the threads of a GPU's kernel between convolutions.

A kernel computes rows, each of which has columns: the elements that a reduction joins, or the elements of a map that
reads its result. Threads own vectors of neighbouring columns, or of neighbouring rows where rows are contiguous in
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.sym import Analyzer

from tvmconv.compute.statements import INDEX
from tvmconv.compute.substitution import substitute

from ..stages import variables_in

VECTOR_BYTES = 16
"""The bytes that a thread loads at once at most."""

TILE = 32
"""The rows and the columns of a tile of shared memory, through which a kernel transposes elements."""

LINE = 128
"""The bytes of a line of the cache, which tiles have in both directions where a kernel does nothing but transpose."""

Axes = Mapping[Var, Expr]


@dataclass(frozen=True)
class Domain:
    """The rows that a kernel computes, and the columns in each of its stages."""

    rows: Axes
    """The axes of the rows, with their extents."""
    columns: Sequence[Axes]
    """For each stage, the axes of its columns: of a reduction those that it reduces."""
    axis_values: Sequence[Mapping[Var, Expr]]
    """For each stage, its axes in terms of the axes of rows and columns, without those that are such axes
    themselves."""
    tests: Sequence[Expr] = ()
    """The tests for a column of the last stage to exist."""
    row_tests: Sequence[Expr] = ()
    """The tests for each row of a vector to exist."""


@dataclass(frozen=True)
class Slide:
    """Neighbouring windows of a thread along an axis."""

    row: Var
    """The axis of rows, which are outputs, along which windows slide."""
    inner: Var
    """The axis of a window's elements in the same direction."""
    size: int
    """The elements of a window along that axis."""
    step: int
    """The elements from one window to the next."""
    outputs: int = 1
    """The neighbouring windows that a thread has."""

    @property
    def width(self) -> int:
        """The elements along that axis that the windows have together."""
        return (self.outputs - 1) * self.step + self.size

    @property
    def shares_most(self) -> bool:
        """True if a window shares more than half of its elements with the next one."""
        return 2 * self.step < self.size


@dataclass(frozen=True)
class Sliding:
    """Windows that slide along the contiguous axis in memory, or that lie side by side on it and slide along others."""

    slides: Sequence[Slide]
    """The windows along one axis or along two, of which the last one is the inner axis in memory."""
    side: Var | None = None
    """The axis of rows along which windows are side by side in memory; None where they slide along the contiguous
    axis."""
    lanes: int = 1
    """The number of windows side by side that a thread has, for each of its neighbouring windows."""

    @property
    def outputs(self) -> int:
        """The windows of a thread, without those side by side."""
        return prod(slide.outputs for slide in self.slides)

    def shared(self, reduced: Axes) -> dict[Var, Expr]:
        """Return the axes of a window, with the extents that all windows of a thread have together."""
        return {**reduced, **{slide.inner: tirx.const(slide.width, INDEX) for slide in self.slides}}


@dataclass(frozen=True)
class Plan:
    """The threads of a kernel."""

    has_column_vectors: bool
    """True if a vector is one of columns; False if it is one of rows."""
    vector: int
    """The elements of a vector."""
    rows: int
    """The rows of a block, or its vectors of rows."""
    threads: int
    """The threads of each row, or of each vector of rows."""
    max_kept_vectors: int
    """The most vectors of a row that a thread loads before it uses the first, and keeps for the next stage."""
    through_tiles: Sequence[Expr] = ()
    """The expressions of the last stage that go through tiles, from threads of rows to threads of columns."""
    tile: int = TILE
    """The most rows, and columns, of a tile for `through_tiles`."""
    sliding: Sliding | None = None
    """The neighbouring windows of each thread, which loads the elements that they share once; None without."""

    @property
    def run(self) -> int:
        """The elements of a vector that are contiguous in memory."""
        return self.vector if self.sliding is None or self.sliding.side is None else self.sliding.lanes


def size_of(axes: Axes) -> Expr:
    """Return the product of the extents of axes."""
    product = reduce(lambda one, other: one * other, axes.values(), tirx.const(1, INDEX))
    return Analyzer().simplify(product)


def split_index(index: Expr, axes: Axes) -> dict[Var, Expr]:
    """Return the index on each axis of an element with a flat index, the last axis being the innermost."""
    found: dict[Var, Expr] = {}
    for number, (var, extent) in enumerate(reversed(list(axes.items())), start=1):
        found[var] = index if number == len(axes) else tirx.floormod(index, extent)
        index = tirx.floordiv(index, extent)
    return found


def assumed(size: Expr) -> int:
    """Return a size, or a guess for one that is known only when the model runs."""
    if isinstance(size, tirx.IntImm):
        return int(size)
    return int(Analyzer().simplify(substitute(size, dict.fromkeys(variables_in([size]), 16))))
