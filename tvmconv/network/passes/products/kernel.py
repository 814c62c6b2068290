"""Batched products of matrices on a CPU with sizes that are known only when they run.

A task copies a tile of columns of the second factor into a contiguous buffer, and multiplies rows of the first factor
by them, a few at a time, with the sums in registers.
"""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.lowering import as_scheduled, with_alignment
from tvmconv.targets.devices import cpu_of

from .product import INDEX, OpenFactors, Product

VECTORS = 2
"""The vectors of columns in a tile; the columns after the last whole tile are in tiles of one vector."""

ROWS = (12, 6, 3, 1)
"""The numbers of rows that are summed at once, as far as registers hold their sums."""

TASK_ROWS = 240
"""The rows of a task, for which copying the columns is a few percent of the time."""

SPARE = 3
"""The registers that are left for columns, an element of a row, and what LLVM needs."""


class _Tile(NamedTuple):
    """The columns of a task."""

    matrix: Expr
    column: Expr
    vectors: int
    columns: tirx.Buffer
    """The copy of the columns, (K, lanes * `VECTORS`)."""


def product_kernel(product: Product, transposed: bool, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """Return the function of a product, whose second factor may be transposed: (G, N, K).

    Before: `y = x w`. After: `for matrix, rows, columns in parallel: copy = w[:, columns]`, and
    `for row in rows step 12: sums = 0; for k: sums += x[row : row + 12, k] * copy[k]; y[...] = sums`.
    """
    return _Kernel(product, transposed, target).function(name, target)


class _Kernel:
    """The factors and the tile sizes of the function that is being built."""

    def __init__(self, product: Product, transposed: bool, target: tvm.target.Target) -> None:
        self.factors, self.lanes = OpenFactors.of(product, transposed), cpu_of(target).lanes
        sums = (cpu_of(target).registers - SPARE) // VECTORS
        self.steps = [rows for rows in ROWS if rows <= sums]

    def function(self, name: str, target: tvm.target.Target) -> tirx.PrimFunc:
        """Return the function with a task for each tile of columns, and of `TASK_ROWS` rows."""
        given, task, names = self.factors, _variable("task"), ("tile", "matrix", "begin", "end")
        width = self.lanes * VECTORS
        whole = given.columns // width
        parts = (given.columns - whole * width + self.lanes - 1) // self.lanes
        tiles, blocks = whole + parts, (given.rows + TASK_ROWS - 1) // TASK_ROWS
        tile, matrix, begin, end = map(_variable, names)
        values = task % tiles, task // (tiles * blocks), task // tiles % blocks * TASK_ROWS
        bound = [*zip((tile, matrix, begin), values, strict=True), (end, tirx.min(begin + TASK_ROWS, given.rows))]
        in_whole = self._task(matrix, tile * width, VECTORS, begin, end)
        in_part = self._task(matrix, whole * width + (tile - whole) * self.lanes, 1, begin, end)
        body = tirx.stmt_seq(*(tirx.Bind(*each) for each in bound), tirx.IfThenElse(tile < whole, in_whole, in_part))
        tasks = _loop(task, given.batch * tiles * blocks, body, tirx.ForKind.PARALLEL)
        root = SBlockRealize([], tirx.const(True), SBlock([], [], [], "root", tasks))
        func = tirx.PrimFunc(given.parameters, root).with_attrs({"tirx.noalias": True, "s_tir": True})
        return with_alignment(as_scheduled(func, name), target)

    def _task(self, matrix: Expr, column: Expr, vectors: int, begin: Expr, end: Expr) -> tirx.Stmt:
        """Return the statements for some rows and the columns of a tile."""
        copy = tirx.decl_buffer([self.factors.terms, vectors * self.lanes], "float32", "columns")
        tile = _Tile(matrix, _variable("column"), vectors, copy)
        buffers, steps = [copy], [tirx.Bind(tile.column, column), self._copied(tile)]
        for rows in self.steps:
            sums = tirx.decl_buffer([rows * vectors, self.lanes], "float32", f"sums_{rows}", scope="local")
            stored = tirx.decl_buffer([rows, self.lanes], "float32", f"stored_{rows}", scope="local")
            buffers += [sums, stored]
            step, row, count, behind = map(_variable, ("step", "row", "count", "begin"))
            summed = tirx.stmt_seq(tirx.Bind(row, begin + step * rows), self._summed(tile, row, rows, sums, stored))
            steps += [tirx.Bind(count, (end - begin) // rows), _loop(step, count, summed)]
            steps.append(tirx.Bind(behind, begin + count * rows))
            begin = behind
        return SBlockRealize(
            [], tirx.const(True), SBlock([], [], [], "task", tirx.stmt_seq(*steps), alloc_buffers=buffers)
        )

    def _copied(self, tile: _Tile) -> tirx.Stmt:
        """Return the loops that copy a tile's columns, with zeros after the last column."""
        term, lane = _variable("term"), _variable("lane")
        given, column, width = self.factors, tile.column + lane, tirx.const(tile.vectors * self.lanes, INDEX)
        value = given.second_at(tile.matrix, term, column)
        if tile.vectors < VECTORS:
            value = tirx.if_then_else(column < given.columns, value, tirx.const(0.0, "float32"))
        store = tile.columns.vstore([term, lane], value)
        if given.transposed:
            return _loop(lane, width, _loop(term, given.terms, store))
        is_whole = tile.vectors == VECTORS
        kind = tirx.ForKind.VECTORIZED if is_whole else tirx.ForKind.SERIAL
        return _loop(term, given.terms, _loop(lane, width, store, kind))

    def _summed(self, tile: _Tile, row: Expr, rows: int, sums: tirx.Buffer, stored: tirx.Buffer) -> tirx.Stmt:
        """Return the statements that compute some rows of a tile."""
        term, vectors, vector = _variable("term"), tile.vectors, f"float32x{self.lanes}"
        zero = tirx.Broadcast(tirx.const(0.0, "float32"), self.lanes)
        begun = [sums.vstore([number, 0], zero) for number in range(rows * vectors)]
        steps: list[tirx.Stmt] = []
        columns = []
        for number in range(vectors):
            columns.append(tirx.Var("vector", vector))
            steps.append(tirx.Bind(columns[-1], tile.columns.vload([term, number * self.lanes], vector)))
        for each in range(rows):
            element = tirx.Var("element", vector)
            loaded = self.factors.first_at(tile.matrix, row + each, term)
            steps.append(tirx.Bind(element, tirx.Broadcast(loaded, self.lanes)))
            for number, column in enumerate(columns):
                indices = [each * vectors + number, 0]
                steps.append(sums.vstore(indices, sums.vload(indices, vector) + element * column))
        summed = _loop(term, self.factors.terms, tirx.stmt_seq(*steps))
        return tirx.stmt_seq(*begun, summed, self._stored(tile, row, rows, sums, stored))

    def _stored(self, tile: _Tile, row: Expr, rows: int, sums: tirx.Buffer, stored: tirx.Buffer) -> tirx.Stmt:
        """Return the statements that store sums: whole vectors, or the elements of the last vector that are columns."""
        given, vector, dtype = self.factors, f"float32x{self.lanes}", str(self.factors.result.ty.dtype)
        whole = tirx.stmt_seq(
            *(
                given.result.vstore(
                    [tile.matrix, row + each, tile.column + number * self.lanes],
                    sums.vload([each * tile.vectors + number, 0], vector).astype(f"{dtype}x{self.lanes}"),
                )
                for each in range(rows)
                for number in range(tile.vectors)
            )
        )
        if tile.vectors == VECTORS:
            return whole
        each, lane = _variable("each"), _variable("lane")
        copies = [stored.vstore([number, 0], sums.vload([number, 0], vector)) for number in range(rows)]
        value = stored[each, lane].astype(dtype)
        store = given.result.vstore([tile.matrix, row + each, tile.column + lane], value)
        left = _loop(each, tirx.const(rows, INDEX), _loop(lane, given.columns - tile.column, store))
        return tirx.IfThenElse(tile.column + self.lanes <= given.columns, whole, tirx.stmt_seq(*copies, left))


def _variable(name: str) -> tirx.Var:
    return tirx.Var(name, INDEX)


def _loop(var: tirx.Var, extent: Expr, body: tirx.Stmt, kind: int = tirx.ForKind.SERIAL) -> tirx.Stmt:
    return tirx.For(var, tirx.const(0, INDEX), extent, kind, body)
