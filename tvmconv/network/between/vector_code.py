"""Straight-line vector code, with constant offsets, for a reduction over windows on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from math import prod

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, PrimType, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.substitution import substitute

LEAST_LANES = 4
"""The fewest lanes with which vectors pay."""

MAX_LOADS = 256
"""The largest number of vectors that are loaded for a row of outputs."""


@dataclass(frozen=True)
class Reduction:
    """A reduction `target[...] = join(target[...], load if all(conditions) else fill)` over all values of some axes."""

    target: tirx.BufferStore
    join: Callable[[Expr, Expr], Expr]
    load: TensorLoad
    conditions: list[Expr]
    fill: Expr | None
    """The value where a condition is false; None without conditions."""
    outputs: dict[Var, int]
    """The axes of the outputs, with their extents."""
    reduced: dict[Var, int]
    """The axes that are reduced for an output, from the outside in, with their extents."""
    outer: dict[Var, Range]
    """The ranges of all other variables."""


def variables(expr: Expr) -> set[Var]:
    """Return the variables in an expression."""
    found: set[Var] = set()
    tvm_ffi.structural_walk(expr, [(Var, found.add)])
    return found


class VectorCode:
    """The statements that compute a reduction with vectors; there are none where vectors do not fit."""

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.source, self.dtype = reduction.load.source, str(reduction.target.buffer.ty.dtype)
        self._index_dtype = reduction.load.indices[-1].ty.dtype
        self._statements: list[tirx.Stmt] = []
        self._analyzer = Analyzer()
        for var, values in reduction.outer.items():
            self._analyzer.bind(var, values)

    def row(self, max_lanes: int) -> list[tirx.Stmt]:
        """Return statements for a row of outputs of windows that slide along rows.

        The rows of a window are first reduced to one row, in contiguous vectors. These cover the row from end to end,
        and the last one overlaps the one before; vectors of outputs cover the outputs in the same way. Nothing outside
        the row is read or written.
        """
        found = self.reduction
        ((output_axis, outputs),) = found.outputs.items()
        column, row = found.load.indices[-1], int(self.source.ty.shape[-1])
        reduced_along_rows = {var: extent for var, extent in found.reduced.items() if var in variables(column)}
        reduced_across_rows = {var: extent for var, extent in found.reduced.items() if var not in reduced_along_rows}
        inside = {output_axis, *reduced_along_rows}
        of_columns = [each for each in found.conditions if variables(each) & inside]
        of_rows = [each for each in found.conditions if not variables(each) & inside]
        others = [*found.load.indices[:-1], *found.target.indices[:-1]]
        if any(variables(each) & inside for each in others) or not found.target.indices[-1].same_as(output_axis):
            return []
        if not all(variables(each) <= inside for each in (column, *of_columns)):
            return []
        if -(-outputs // max_lanes) * prod(found.reduced.values()) > MAX_LOADS:  # even with the longest vectors
            return []

        def window(output: int) -> Iterator[int | None]:
            """Yield the columns that an output reads; None for padding."""
            for values in _points(reduced_along_rows):
                at = {output_axis: output, **values}
                is_there = all(int(self._simplified(each, at)) for each in of_columns)
                yield int(self._simplified(column, at)) if is_there else None

        windows = [list(window(output)) for output in range(outputs)]
        stride = max([1, *_distances(windows)])
        lanes = max_lanes
        while lanes > outputs or _width(lanes, stride) > row:
            lanes //= 2
        starts = _starts(outputs, lanes)
        if lanes < LEAST_LANES or len(starts) * prod(found.reduced.values()) > MAX_LOADS:
            return []
        width = _width(lanes, stride)
        begins = _starts(row, width)
        parts: dict[int, Var] = {}

        def tap(columns: tuple[int | None, ...]) -> Var:
            """Return the vector of the elements in some columns, with padding for None, from vectors of the row."""
            chosen: list[int] = []
            lane: list[int | None] = []
            for each in columns:
                if each is None:
                    lane.append(None)
                    continue
                begin = next(begin for begin in (*chosen, *begins) if begin <= each < begin + width)
                if begin not in chosen:
                    chosen.append(begin)
                lane.append(chosen.index(begin) * width + each - begin)
            for begin in chosen:
                if begin not in parts:
                    parts[begin] = self._part(begin, width, reduced_across_rows, of_rows)
            vectors = [parts[begin] for begin in chosen]
            if None in columns:
                vectors.append(tirx.Broadcast(found.fill, width))
            padding = len(chosen) * width
            return self._bind(tirx.Shuffle(vectors, [padding if each is None else each for each in lane]), lanes)

        for start in starts:
            value = reduce(found.join, map(tap, zip(*windows[start : start + lanes], strict=True)))
            self._store([*found.target.indices[:-1], self._index(start)], value)
        return self._statements

    def _part(self, begin: int, width: int, across: Mapping[Var, int], conditions: list[Expr]) -> Var:
        """Return a vector of the row that the rows of a window are reduced to."""
        vectors = []
        for at in _points(across):
            indices = [self._simplified(index, at) for index in self.reduction.load.indices[:-1]]
            vector = self._load([*indices, self._index(begin)], width)
            if conditions:
                is_there = tirx.all(*(self._simplified(each, at) for each in conditions))
                vector = tirx.if_then_else(is_there, vector, tirx.Broadcast(self.reduction.fill, width))
            vectors.append(self._bind(vector, width))
        return self._bind(reduce(self.reduction.join, vectors), width)

    def _load(self, indices: list[Expr], lanes: int) -> Expr:
        return self.source.vload(indices, f"{self.dtype}x{lanes}")

    def _store(self, indices: list[Expr], value: Expr) -> None:
        self._statements.append(self.reduction.target.buffer.vstore(indices, value))

    def _bind(self, value: Expr, lanes: int) -> Var:
        var = Var("vector", PrimType(f"{self.dtype}x{lanes}" if lanes > 1 else self.dtype))
        self._statements.append(tirx.Bind(var, value))
        return var

    def _index(self, value: int) -> Expr:
        return tirx.const(value, self._index_dtype)

    def _simplified(self, expr: Expr, values: Mapping[Var, int]) -> Expr:
        """Return an expression with integers for some of its variables."""
        return self._analyzer.simplify(substitute(expr, values))


def _points(axes: Mapping[Var, int]) -> Iterator[dict[Var, int]]:
    """Yield all values that some axes take together."""
    for values in product(*map(range, axes.values())):
        yield dict(zip(axes, values, strict=True))


def _distances(windows: list[list[int | None]]) -> Iterator[int]:
    """Yield the distances from the columns of one output to those of the next."""
    for one, other in pairwise(windows):
        yield from (b - a for a, b in zip(one, other, strict=True) if a is not None and b is not None)


def _starts(count: int, lanes: int) -> list[int]:
    """Return the starts of vectors that cover `count` elements; the last one ends with them."""
    return [*range(0, count - lanes, lanes), count - lanes]


def _width(lanes: int, stride: int) -> int:
    """Return the size of a vector of which `lanes` elements at a stride are used, rounded up to a power of two."""
    return 1 << (stride * (lanes - 1)).bit_length()
