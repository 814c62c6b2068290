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
    together, width = TILE // plan.threads, plan.rows + 1
    tiles = [kernel.registers("tile", TILE * width, str(each.ty.dtype), "shared") for each in plan.parts]

    # Threads of rows fill the tiles.
    step = {kernel.step: number * together + kernel.step, kernel.element: 0}
    place = (kernel.step * plan.threads + kernel.lane) * width + kernel.row
    fill = [
        tirx.BufferStore(tile, substitute(columns.value(each), step), [place])
        for tile, each in zip(tiles, plan.parts, strict=True)
    ]
    tests = [substitute(test, step) for test in columns.tests]
    filled = loop(kernel.step, together, tested(tests, sequence(fill)))

    # Threads of columns store what they make of them.
    row = tirx.floordiv(kernel.thread, TILE) + part * (plan.rows * plan.threads // TILE)
    column = tirx.floormod(kernel.thread, TILE)
    other_row, other_column = index_variable("other_row"), index_variable("other_column")
    columns.analyzer.bind(other_row, Range(0, kernel.groups))
    turn = columns.at_once * plan.threads
    columns.analyzer.bind(other_column, Range(0, columns.turns * turn))
    found = columns.placed(other_row, other_column)
    assert columns.count is not None
    tests = [] if kernel.is_there is None else [other_row < kernel.groups]
    tests += [] if columns.analyzer.can_prove(other_column < columns.count) else [other_column < columns.count]
    tests += [columns.analyzer.simplify(substitute(test, found)) for test in kernel.domain.tests]
    zero = tirx.const(0, INDEX)

    def flat(buffer: Any, indices: list[Expr]) -> list[Expr]:
        return [*[zero] * (len(buffer.ty.shape) - 1), columns.flat(buffer, indices, found)]

    def made(value: Expr) -> Expr:
        """Return a value with elements of tiles in the place of the parts that go through them."""
        for tile, each in zip(tiles, plan.parts, strict=True):
            if tvm_ffi.structural_equal(value, each):
                return tile[column * width + row]

        def load(each: TensorLoad) -> Expr:
            if any(tvm_ffi.structural_equal(each, known) for known in plan.parts):
                return made(each)
            return each.source.vload(flat(each.source, each.indices)) if each.source.ty.shape else each

        # The axes of what goes through tiles are not to be looked for in tiles, whose places have none.
        return substitute(with_loads(value, load), found)

    stores = [
        tirx.BufferStore(target, made(value), flat(target, stage.indices))
        for target, value in zip(stage.targets, stage.values, strict=True)
    ]
    at = {
        other_row: kernel.block * plan.rows + row,
        other_column: (kernel.turn * columns.at_once + number * together) * plan.threads + column,
    }
    stored = loop(part, together, substitute(tested(tests, sequence(stores)), at))
    body = sequence([filled, barrier(), stored, barrier()])
    return [loop(number, columns.at_once // together, body)]
