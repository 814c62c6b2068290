"""Transposing stores on a GPU: threads of rows fill tiles of shared memory, from which threads of columns store."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.statements import INDEX, barrier, index_variable, loop, sequence, tested
from tvmconv.compute.substitution import substitute
from tvmconv.lowering.signatures import itemsize

from ..stages import with_loads
from .columns import Columns

WORD = 4
"""The bytes of a bank of shared memory."""

STORED_BYTES = 8
"""The bytes that a thread stores at once at most."""


def stored_through_tiles(columns: Columns) -> list[tirx.Stmt]:
    """Return the statements for the columns of a turn: a block's threads fill tiles, wait, and store their elements.

    The columns of a tile have padding: so neither the elements of a row nor those of a column are in one bank of shared
    memory.

    Before: `for c in columns: y[row, c] = f(x[c, row])`, with a row for each thread.
    After: `for tile in columns: (for c in tile: shared[c, row] = x[c, row]); wait; (for r in rows: y[r, thread] =
    f(shared[thread, r])); wait`.
    """
    kernel, plan = columns.kernel, columns.plan
    together, number = plan.tile // plan.threads, index_variable("number")
    elements = plan.tile * (plan.rows * plan.vector + WORD)
    tiles = [kernel.registers("tile", elements, str(each.ty.dtype), "shared") for each in plan.through_tiles]

    # Threads of columns compute the values to store from tiles, in vectors of columns where these are contiguous.
    size = STORED_BYTES // max(itemsize(target.ty.dtype) for target in columns.stage.targets)
    size = max(1, size) if len(kernel.stages) == 1 else 1
    stores = _Stores(columns, size, number, dict(zip(tiles, plan.through_tiles, strict=True)))
    while (stored := stores.all()) is None:
        stores = _Stores(columns, stores.size // 2, number, stores.tiles)

    # Threads of rows fill the tiles.
    step = {kernel.step: number * together + kernel.step}
    index = (kernel.step * plan.threads + kernel.lane) * stores.width + kernel.row * plan.vector + kernel.element
    filling: list[tirx.Stmt] = [
        tirx.BufferStore(tile, substitute(columns.value(each), step), [index])
        for tile, each in zip(tiles, plan.through_tiles, strict=True)
    ]
    tests = [substitute(test, step) for test in columns.tests]
    filled = loop(kernel.step, together, tested(tests, loop(kernel.element, plan.vector, sequence(filling))))
    tiles_of_turn = columns.at_once // together
    is_single = tiles_of_turn == 1 and isinstance(columns.turns, tirx.IntImm) and int(columns.turns) == 1
    body = [filled, barrier(), stored, *([] if is_single else [barrier()])]
    return [loop(number, tiles_of_turn, sequence(body))]


class _Stores:
    """The stores of vectors of `size` columns, whose elements threads read from tiles."""

    def __init__(self, columns: Columns, size: int, number: Var, tiles: dict[Any, Expr]) -> None:
        kernel, plan = columns.kernel, columns.plan
        self.columns, self.size, self.tiles = columns.in_vectors(size), size, tiles
        self.row, self.vector_index, self.part = (index_variable(name) for name in ("row", "vector", "part"))
        rows, lanes = plan.rows * plan.vector, plan.tile // size
        slots = plan.rows * plan.threads // lanes
        # Neighbouring threads read at a distance of lines and one word or, in vectors, of lines and one element.
        narrow = min(itemsize(part.ty.dtype) for part in plan.through_tiles)
        self.parts, self.width = rows // slots, rows + (max(1, WORD // narrow) if size == 1 else 1)
        self.column = self.vector_index * size + kernel.element
        self.at = {
            self.row: self.part * slots + tirx.floordiv(kernel.thread, lanes),
            self.vector_index: tirx.floormod(kernel.thread, lanes),
        }
        row = kernel.block * rows + self.row
        first = (kernel.turn * columns.at_once + number * (plan.tile // plan.threads)) * plan.threads
        ranges = {
            kernel.block: tirx.ceildiv(kernel.groups, plan.rows),
            self.row: rows,
            self.vector_index: lanes,
            number: columns.at_once * plan.threads // plan.tile,
        }
        for var, extent in ranges.items():
            self.columns.analyzer.bind(var, Range(0, extent))
        self.axes = columns.axes_at(row, first + self.column)
        below = [first + self.column < columns.count]
        below += [substitute(test, self.axes) for test in kernel.domain.tests]
        self.whole = all(self._is_whole(test.b) for test in below)
        self.below = [test for test in map(self.columns.analyzer.simplify, below) if not self._holds(test)]
        self.rows = [] if kernel.is_there is None else [row < kernel.groups * plan.vector]

    def _holds(self, test: Expr) -> bool:
        return bool(self.columns.analyzer.can_prove(test))

    def _is_whole(self, size: Expr) -> bool:
        return bool(Analyzer().can_prove_equal(tirx.floormod(size, self.size), 0))

    def all(self) -> tirx.Stmt | None:
        """Return the statement with all stores of a thread; None if memory has no aligned vectors of that size."""
        element, stage, stores = self.columns.kernel.element, self.columns.stage, list[tirx.Stmt]()
        for target, value in zip(stage.targets, map(self._read_from_tiles, stage.values), strict=True):
            indices = self._indices_of(target, stage.indices)
            if self.size == 1:
                store = tirx.BufferStore(target, value, indices)
                stores.append(tested([*self.rows, *self.below], substitute(store, {element: 0})))
                continue
            if not self.whole or not self.columns.is_vector(indices[-1]):
                return None
            out = self.columns.kernel.registers("out", self.size, str(target.ty.dtype))
            fill = loop(element, self.size, tirx.BufferStore(out, value, [element]))
            store = tirx.BufferStore(target, out[element], indices)
            copy = loop(element, self.size, store, tirx.ForKind.VECTORIZED)
            first = [substitute(test, {element: 0}) for test in self.below]
            stores.append(tested([*self.rows, *first], sequence([fill, copy])))
        return loop(self.part, self.parts, substitute(sequence(stores), self.at))

    def _indices_of(self, buffer: Any, indices: list[Expr]) -> list[Expr]:
        offset = self.columns.offset_with(buffer, indices, self.axes)
        return [*[tirx.const(0, INDEX)] * (len(buffer.ty.shape) - 1), offset]

    def _read_from_tiles(self, value: Expr) -> Expr:
        """Return a value with elements of tiles instead of the expressions that go through them."""
        for tile, each in self.tiles.items():
            if tvm_ffi.structural_equal(value, each):
                return tile[self.column * self.width + self.row]

        def load(each: TensorLoad) -> Expr:
            if any(tvm_ffi.structural_equal(each, known) for known in self.tiles.values()):
                return self._read_from_tiles(each)
            return each.source.vload(self._indices_of(each.source, each.indices)) if each.source.ty.shape else each

        # Axes are replaced last, as loads are compared by them; indices into tiles have no axes.
        return substitute(with_loads(value, load), self.axes)
