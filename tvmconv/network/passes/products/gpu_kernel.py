"""Batched products of matrices on a GPU with sizes that are known only when they run, by multiply-adds alone.

A thread block has a square tile of the result, and keeps chunks of rows of both factors in shared memory, in float32; a
thread sums four rows times four columns.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.statements import barrier, index_variable, launched, loop, sequence, tested
from tvmconv.lowering import as_scheduled, with_alignment

from .product import OpenFactors, Product

SIDE = 64
"""The rows and the columns of a block's tile."""

CHUNK = 16
"""The terms (along K) that a thread block has in shared memory at once."""

THREAD_TILE = 4
"""The number of rows, and of columns, that a thread sums."""

THREADS = (SIDE // THREAD_TILE) ** 2

APART = 4
"""The unused elements after each row of shared memory, which has one term: so threads that store to neighbouring terms
use different banks."""


def gpu_product_kernel(product: Product, transposed: bool, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """Return the function of a product, whose second factor may be transposed: (G, N, K).

    Before: `y = x w`. After: `for matrix, rows, columns in blocks: for chunk: share x[rows, chunk], w[chunk, columns];
    sums += x[own rows, chunk] w[chunk, own columns]` and `y[own rows, own columns] = sums`.
    """
    return _Kernel(product, transposed).function(target, name)


class _Kernel:
    """The factors and the buffers of the function that is being built."""

    def __init__(self, product: Product, transposed: bool) -> None:
        self.factors = OpenFactors.of(product, transposed)
        self.thread, self.block = index_variable("thread"), index_variable("block")
        self.rows, self.columns = (
            tirx.decl_buffer([CHUNK, SIDE + APART], "float32", name, scope="shared") for name in ("rows", "columns")
        )
        self.sums = tirx.decl_buffer([THREAD_TILE * THREAD_TILE], "float32", "sums", scope="local")
        self.row, self.column = (
            tirx.decl_buffer([THREAD_TILE], "float32", name, scope="local") for name in ("row", "column")
        )

    def function(self, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
        """Return the function of the kernel."""
        given = self.factors
        tiles = [(size + (SIDE - 1)) // SIDE for size in (given.rows, given.columns)]
        matrix, first_row, first_column = (index_variable(each) for each in ("matrix", "first_row", "first_column"))
        chunk, term, number = (index_variable(each) for each in ("chunk", "term", "number"))
        across = SIDE // THREAD_TILE
        thread_row, thread_column = self.thread // across * THREAD_TILE, self.thread % across * THREAD_TILE
        added = loop(term, CHUNK, sequence(self._added(term, thread_row, thread_column)))
        steps = [
            *self._shared(self.rows, matrix, first_row, chunk * CHUNK, of_first=True),
            *self._shared(self.columns, matrix, first_column, chunk * CHUNK, of_first=False),
            barrier(),
            added,
            barrier(),
        ]
        chunks = (given.terms + (CHUNK - 1)) // CHUNK
        zero = tirx.BufferStore(self.sums, tirx.const(0.0, "float32"), [number])
        body = [
            tirx.Bind(matrix, self.block // (tiles[0] * tiles[1])),
            tirx.Bind(first_row, self.block // tiles[1] % tiles[0] * SIDE),
            tirx.Bind(first_column, self.block % tiles[1] * SIDE),
            loop(number, THREAD_TILE * THREAD_TILE, zero),
            loop(chunk, chunks, sequence(steps), tirx.ForKind.SERIAL),
            self._stored(matrix, first_row + thread_row, first_column + thread_column),
        ]
        buffers = [self.rows, self.columns, self.sums, self.row, self.column]
        grid = given.batch * tiles[0] * tiles[1]
        root = launched(sequence(body), {self.thread: THREADS, self.block: grid}, buffers)
        func = tirx.PrimFunc(given.parameters, root).with_attrs({"tirx.noalias": True, "s_tir": True})
        return with_alignment(as_scheduled(func, name), target)

    def _shared(self, shared: tirx.Buffer, matrix: Expr, first: Expr, begin: Expr, of_first: bool) -> list[tirx.Stmt]:
        """Return the statements that copy a chunk of a factor, with zeros for elements outside the factor."""
        given, number = self.factors, index_variable("number")
        index = number * THREADS + self.thread
        in_terms = of_first or given.transposed  # terms are the contiguous axis in memory
        term, row_or_column = (index % CHUNK, index // CHUNK) if in_terms else (index // SIDE, index % SIDE)
        value = given.first_at(matrix, first + row_or_column, begin + term)
        if not of_first:
            value = given.second_at(matrix, begin + term, first + row_or_column)
        count = given.rows if of_first else given.columns
        there = tirx.all(first + row_or_column < count, begin + term < given.terms)
        value = tirx.if_then_else(there, value, tirx.const(0.0, "float32"))
        return [loop(number, CHUNK * SIDE // THREADS, tirx.BufferStore(shared, value, [term, row_or_column]))]

    def _added(self, term: Expr, thread_row: Expr, thread_column: Expr) -> list[tirx.Stmt]:
        """Return the statements that add the products of a term to a thread's sums."""
        lane, row, column = (index_variable(each) for each in ("lane", "row", "column"))
        copies = (self.row, self.rows, thread_row), (self.column, self.columns, thread_column)
        loads = [(registers, shared[term, first + lane]) for registers, shared, first in copies]
        loaded = [
            loop(lane, THREAD_TILE, tirx.BufferStore(registers, value, [lane]), tirx.ForKind.VECTORIZED)
            for registers, value in loads
        ]
        at = row * THREAD_TILE + column
        added = tirx.BufferStore(self.sums, self.sums[at] + self.row[row] * self.column[column], [at])
        return [*loaded, loop(row, THREAD_TILE, loop(column, THREAD_TILE, added))]

    def _stored(self, matrix: Expr, first_row: Expr, first_column: Expr) -> tirx.Stmt:
        """Return the statements that store those sums of a thread that are elements of the result."""
        given, row, column = self.factors, index_variable("row"), index_variable("column")
        value = self.sums[row * THREAD_TILE + column].astype(str(given.result.ty.dtype))
        there = [first_row + row < given.rows, first_column + column < given.columns]
        store = tirx.BufferStore(given.result, value, [matrix, first_row + row, first_column + column])
        return loop(row, THREAD_TILE, loop(column, THREAD_TILE, tested(there, store)))
