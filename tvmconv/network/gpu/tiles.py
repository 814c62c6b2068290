"""Statements that store what threads have along rows where it lies along columns: through tiles of shared memory."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range
from tvm.ir.expr import TensorLoad

from ...substitution import substitute
from ..stages import with_loads
from .columns import Columns
from .plan import INDEX, TILE, barrier, index_variable, loop, sequence, tested


def stored_through_tiles(columns: Columns) -> list[tirx.Stmt]:
    """Return the statements for the columns of a turn: a block's threads fill tiles, wait, and store what is in them.

    A tile has a column more than it needs: so neither the elements of its rows nor those of its columns are in the same
    bank of shared memory.

    Before: `for c in columns: y[row, c] = f(x[c, row])`, with a row for each thread.
    After: `for tile in columns: (for c in tile: shared[c, row] = x[c, row]); wait; (for r in rows: y[r, thread] =
    f(shared[thread, r])); wait`.
    """
    kernel, plan, stage = columns.kernel, columns.plan, columns.stage
    number, part = index_variable("number"), index_variable("part")
    together, vector, width = TILE // plan.threads, plan.vector, plan.rows * plan.vector + 1
    tiles = [kernel.registers("tile", TILE * width, str(each.ty.dtype), "shared") for each in plan.parts]

    # Threads of rows fill the tiles.
    step = {kernel.step: number * together + kernel.step}
    place = (kernel.step * plan.threads + kernel.lane) * width + kernel.row * vector + kernel.element
    filling: list[tirx.Stmt] = [
        tirx.BufferStore(tile, substitute(columns.value(each), step), [place])
        for tile, each in zip(tiles, plan.parts, strict=True)
    ]
    tests = [substitute(test, step) for test in columns.tests]
    filled = loop(kernel.step, together, tested(tests, loop(kernel.element, vector, sequence(filling))))

    # Threads of columns store what they make of them, vectors of columns where memory has them.
    lanes = TILE // vector
    row = tirx.floordiv(kernel.thread, lanes) + part * (plan.rows * plan.threads // lanes)
    column = tirx.floormod(kernel.thread, lanes) * vector
    other_row, other_vector = index_variable("other_row"), index_variable("other_vector")
    columns.analyzer.bind(other_row, Range(0, kernel.groups * vector))
    turn = columns.at_once * plan.threads // vector
    columns.analyzer.bind(other_vector, Range(0, columns.turns * turn))
    other_column = other_vector * vector + kernel.element
    found = columns.placed(other_row, other_column)
    assert columns.count is not None
    below = [other_column < columns.count, *(substitute(test, found) for test in kernel.domain.tests)]
    in_vectors = all(columns.analyzer.can_prove_equal(tirx.floormod(test.b, vector), 0) for test in below)
    below = [test for test in map(columns.analyzer.simplify, below) if not columns.analyzer.can_prove(test)]
    rows = [] if kernel.is_there is None else [other_row < kernel.groups * vector]
    zero = tirx.const(0, INDEX)

    def flat(buffer: Any, indices: list[Expr]) -> list[Expr]:
        return [*[zero] * (len(buffer.ty.shape) - 1), columns.flat(buffer, indices, found)]

    def made(value: Expr) -> Expr:
        """Return a value with elements of tiles in the place of the parts that go through them."""
        for tile, each in zip(tiles, plan.parts, strict=True):
            if tvm_ffi.structural_equal(value, each):
                return tile[(column + kernel.element) * width + row]

        def load(each: TensorLoad) -> Expr:
            if any(tvm_ffi.structural_equal(each, known) for known in plan.parts):
                return made(each)
            return each.source.vload(flat(each.source, each.indices)) if each.source.ty.shape else each

        # The axes of what goes through tiles are not to be looked for in tiles, whose places have none.
        return substitute(with_loads(value, load), found)

    stores: list[tirx.Stmt] = []
    for target, value in zip(stage.targets, map(made, stage.values), strict=True):
        place = flat(target, stage.indices)
        if vector > 1 and in_vectors and columns.is_vector(place[-1]):
            out = kernel.registers("out", vector, str(target.ty.dtype))
            fill = loop(kernel.element, vector, tirx.BufferStore(out, value, [kernel.element]))
            store = tirx.BufferStore(target, out[kernel.element], place)
            copy = loop(kernel.element, vector, store, tirx.ForKind.VECTORIZED)
            first = [substitute(test, {kernel.element: 0}) for test in below]
            stores.append(tested([*rows, *first], sequence([fill, copy])))
        else:
            store = tirx.BufferStore(target, value, place)
            stores.append(tested(rows, loop(kernel.element, vector, tested(below, store))))
    at = {
        other_row: kernel.block * plan.rows * vector + row,
        other_vector: tirx.floordiv((kernel.turn * columns.at_once + number * together) * plan.threads, vector)
        + tirx.floormod(kernel.thread, lanes),
    }
    stored = loop(part, together, substitute(sequence(stores), at))
    body = sequence([filled, barrier(), stored, barrier()])
    return [loop(number, columns.at_once // together, body)]
