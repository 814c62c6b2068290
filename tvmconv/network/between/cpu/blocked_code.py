"""The code of reductions of rows and of columns: vectors of accumulators, whose sums are added up in blocks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Expr, PrimType, Var
from tvm.tirx import ForKind

from tvmconv.compute.substitution import substitute

from ..stages import Stage
from .flat_axes import column_of, lanes_of, row_lanes, row_of
from .statements import ZERO, choice, index_of, is_number, loop, loops_over, sequence, vectors_of
from .vector_functions import functions_in

STEPS = 16
"""The largest number of terms that are added one after the other to a lane, before the sum of a block is taken."""

LONG_STEPS = 256
"""The largest number of terms for a lane where sums of blocks are no wider than sums of terms: long blocks are
fewer."""

ACCUMULATORS = 4
"""The number of vectors that are added to in turns, as each addition waits for the one before to the same vector."""

WIDER = {"float32": "float64", "float64": "float64", "int32": "int32", "int64": "int64"}
"""The dtype in which sums of blocks are added up, by the dtype of the sum."""


class _Code:
    """The base of the code of rows and of columns: arrays in registers and statements that join values to them."""

    def __init__(self, stage: Stage) -> None:
        (self.target,), (self.term,), (self.join,), (self.init,) = stage.targets, stage.values, stage.joins, stage.inits
        self.stage, self.dtype = stage, str(self.target.ty.dtype)
        self.adds = self.join is operator.add
        self.neutral = tirx.const(0, self.dtype) if self.adds else self.init
        self.wide = WIDER[self.dtype] if self.adds else self.dtype
        self.steps = STEPS if self.wide != self.dtype else LONG_STEPS
        self.buffers: list[Any] = []

    def array(self, size: int, dtype: str) -> Any:
        """Return a new array of some elements that is small enough for registers."""
        array = tirx.decl_buffer((size,), dtype, f"sums_{len(self.buffers)}")
        self.buffers.append(array)
        return array

    def terms(self, size: int, term: Callable[[Expr], Expr]) -> tuple[list[tirx.Stmt], Callable[[Expr], Expr]]:
        """Return statements, and the function that returns a term by its index, below `size`, once they have run.

        LLVM makes vectors of exponentials and the like in a loop that stores them, where TVM would call a function of
        the C library for each lane.
        """
        if not functions_in(self.term):
            return [], term
        array = self.array(size, self.dtype)
        return [loop(size, lambda index: tirx.BufferStore(array, term(index), [index]))], lambda index: array[index]

    def joined(self, array: Any, index: Expr, value: Expr) -> tirx.Stmt:
        """Return the statement that joins a value to an element of an array."""
        return tirx.BufferStore(array, self.join(array[index], _cast(value, array)), [index])


class Row(_Code):
    """The code for one output: vectors run along a row; the last ends with the row and overlaps the one before."""

    def __init__(self, stage: Stage, lanes: int) -> None:
        super().__init__(stage)
        self.row, self.lanes = row_of(stage), row_lanes(stage, lanes)
        size = int(self.row.count) if isinstance(self.row.count, tirx.IntImm) else None
        vectors = ACCUMULATORS if size is None else min(ACCUMULATORS, size // self.lanes)
        self.step = self.lanes * vectors
        # One more step for the last elements of a row.
        steps = self.steps + 1 if size is None else size // self.step + 1
        self.rows = max(1, self.steps // steps)
        self.is_short = steps <= self.steps
        is_one_block = self.is_short and all(is_number(extent, 1) for extent in self._turns().values())
        self.sums = self.array(self.step, self.dtype)
        self.total = self.array(1, self.dtype if is_one_block else self.wide)

    def statement(self) -> tirx.Stmt:
        """Return the statement that stores the output."""
        begin = tirx.BufferStore(self.total, _cast(self.init, self.total), [ZERO])
        end = tirx.BufferStore(self.target, _cast(self.total[ZERO], self.target), self.stage.indices)
        blocks = loops_over(self._turns(), self._rows) if self.is_short else loops_over(self.row.others, self._long_row)
        return sequence([begin, blocks, end])

    def _turns(self) -> dict[Var, Expr]:
        """Return the axes beside the row's, with the last one divided into blocks of rows."""
        axes = dict(self.row.others)
        if axes:
            axis, extent = axes.popitem()
            axes[axis] = (extent + (self.rows - 1)) // self.rows
        return axes

    def _rows(self, turns: dict[Var, Expr]) -> tirx.Stmt:
        """Return the statement for a block of whole rows."""
        whole = self.row.count // self.step
        if not turns:
            return self._block([*self._rest({}), self._whole_steps({}, ZERO, whole)])
        *_, (axis, turn) = turns.items()

        def row(number: Expr) -> tirx.Stmt:
            at = {**turns, axis: turn * self.rows + number}
            return sequence([*self._rest(at), self._whole_steps(at, ZERO, whole)])

        return self._block([loop(_part(self.row.others[axis], self.rows, turn), row)])

    def _long_row(self, at: dict[Var, Expr]) -> tirx.Stmt:
        """Return the statement for a row in blocks, the first of which joins the elements beyond whole steps, too."""
        whole, rest = self.row.count // self.step, self._rest(at)

        def block(turn: Expr) -> tirx.Stmt:
            first = choice(tirx.EQ(turn, ZERO), lambda: sequence(rest)) if rest else []
            return self._block(
                [*first, self._whole_steps(at, turn * self.steps, tirx.min(whole - turn * self.steps, self.steps))]
            )

        return loop(tirx.max((whole + (self.steps - 1)) // self.steps, 1), block)

    def _block(self, statements: Iterable[tirx.Stmt]) -> tirx.Stmt:
        """Return the statement that clears the accumulators, runs statements, and joins accumulators to the total."""

        def cleared(index: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.sums, self.neutral, [index])

        binds: list[tirx.Stmt] = []
        values: list[Expr] = []
        for vector in range(0, self.step, self.lanes):
            values.append(self._bound(binds, self.sums.vload([index_of(vector)], self._type(self.lanes)), self.lanes))
        while len(values) > 1:
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [self._bound(binds, reduce(self.join, pair), self.lanes) for pair in pairs]
        (value,), lanes = values, self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [tirx.Shuffle([value], list(range(half, half + lanes))) for half in (0, lanes)]
            value = self._bound(binds, self.join(*halves), lanes)
        return sequence(
            [*vectors_of(self.step, self.lanes, cleared), *statements, *binds, self.joined(self.total, ZERO, value)]
        )

    def _whole_steps(self, at: dict[Var, Expr], first: Expr, count: Expr) -> tirx.Stmt:
        """Return the statement that joins a vector to each accumulator `count` times, from a row's step `first` on."""

        def step(number: Expr) -> tirx.Stmt:
            return self._joined(at, 0, (first + number) * self.step, self.step)

        return loop(count, step)

    def _rest(self, at: dict[Var, Expr]) -> list[tirx.Stmt]:
        """Return the statements that join the elements of a row beyond its whole steps.

        The last vector overlaps the one before, and has neutral elements for those that both have; a row that is
        shorter than a vector is added up one by one.
        """
        count = self.row.count
        start, left = count // self.step * self.step, count % self.step // self.lanes
        statements = [
            each
            for number, vector in enumerate(range(0, self.step - self.lanes, self.lanes))
            for each in choice(left > number, partial(self._joined, at, vector, start + vector, self.lanes))
        ]
        odd = count % self.lanes

        def ends_with_row() -> tirx.Stmt:
            return self._joined(at, self.step - self.lanes, count - self.lanes, self.lanes, self.lanes - odd)

        def one_by_one() -> tirx.Stmt:
            return loop(odd, lambda number: self.joined(self.total, ZERO, self._term(at, number)))

        return [*statements, *choice(odd > 0, lambda: sequence(choice(count >= self.lanes, ends_with_row, one_by_one)))]

    def _joined(self, at: dict[Var, Expr], first: int, start: Expr, count: int, begin: Expr | None = None) -> tirx.Stmt:
        """Return the statement that joins `count` elements from `start` on to `count` sums from `first` on.

        Where numbers are added up, the first `begin` of these elements count as 0.
        """
        statements, term = self.terms(count, lambda index: self._term(at, start + index))

        def joined(index: Expr) -> tirx.Stmt:
            value = term(index)
            if begin is not None and self.adds:
                value = tirx.Select(index >= begin, value, self.neutral)
            return self.joined(self.sums, first + index, value)

        return sequence([*statements, *vectors_of(count, self.lanes, joined)])

    def _term(self, at: dict[Var, Expr], index: Expr) -> Expr:
        return substitute(self.term, {**at, **self.row.at(index)})

    def _type(self, lanes: int) -> str:
        return f"{self.dtype}x{lanes}" if lanes > 1 else self.dtype

    def _bound(self, binds: list[tirx.Stmt], value: Expr, lanes: int) -> Var:
        var = Var("vector", PrimType(self._type(lanes)))
        binds.append(tirx.Bind(var, value))
        return var


class Columns(_Code):
    """The code for outputs that are neighbours in memory: some vectors of them at a time, through all rows."""

    def __init__(self, stage: Stage, lanes: int, is_parallel: bool) -> None:
        super().__init__(stage)
        columns = column_of(stage)
        assert columns is not None
        self.columns, self.is_parallel = columns, is_parallel
        self.lanes = lanes_of(self.dtype, lanes)

    def statement(self) -> tirx.Stmt:
        """Return the statement that stores all outputs."""
        count, lanes = self.columns.count, self.lanes
        if isinstance(count, tirx.IntImm) and int(count) < lanes:
            return self._strip(ZERO, 1, int(count))
        vectors = min(ACCUMULATORS, int(count) // lanes) if isinstance(count, tirx.IntImm) else ACCUMULATORS
        width = vectors * lanes
        kind = ForKind.PARALLEL if self.is_parallel else ForKind.SERIAL
        whole, left, odd = count // width, count % width // lanes, count % lanes
        strips = loop(whole, lambda number: self._strip(number * width, vectors, lanes), kind)

        def rest() -> tirx.Stmt:
            return loop(left, lambda number: self._strip(whole * width + number * lanes, 1, lanes))

        def ends_with_row() -> tirx.Stmt:
            return self._strip(count - lanes, 1, lanes, lanes - odd)

        def one_by_one() -> tirx.Stmt:
            return loop(odd, lambda number: self._strip(number, 1, 1))

        ends = choice(odd > 0, lambda: sequence(choice(count >= lanes, ends_with_row, one_by_one)))
        return sequence([strips, *choice(left > 0, rest), *ends])

    def _strip(self, start: Expr, vectors: int, lanes: int, begin: Expr | None = None) -> tirx.Stmt:
        """Return the statement that stores outputs from `start` on: some vectors, or one from its lane `begin` on."""
        sums, axes = self.array(vectors * lanes, self.dtype), self.stage.reduced
        known = [isinstance(extent, tirx.IntImm) for extent in axes.values()]

        def each(statement: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
            return sequence(vectors_of(vectors * lanes, lanes, statement))

        def fill(array: Any, value: Expr) -> tirx.Stmt:
            return each(lambda index: tirx.BufferStore(array, _cast(value, array), [index]))

        def join(at: dict[Var, Expr]) -> tirx.Stmt:
            def element(index: Expr) -> Expr:
                return substitute(self.term, {**at, **self.columns.at(start + index)})

            statements, term = self.terms(vectors * lanes, element)
            return sequence([*statements, each(lambda index: self.joined(sums, index, term(index)))])

        def store(array: Any) -> tirx.Stmt:
            def one(index: Expr) -> tirx.Stmt:
                indices = [substitute(each, self.columns.at(start + index)) for each in self.stage.indices]
                return tirx.BufferStore(self.target, _cast(array[index], self.target), indices)

            return each(one) if begin is None else loop(lanes - begin, lambda number: one(begin + number))

        if not self.adds or (all(known) and prod(map(int, axes.values())) <= self.steps):
            return sequence([fill(sums, self.init), loops_over(axes, join), store(sums)])
        total = self.array(vectors * lanes, self.wide)
        rows, outer = 1, dict(axes)
        inner: dict[Var, Expr] = {}
        while True:
            axis, extent = outer.popitem()
            if not isinstance(extent, tirx.IntImm) or rows * int(extent) > self.steps:
                break
            rows, inner = rows * int(extent), {axis: extent, **inner}
        rows = self.steps // rows

        def block(at: dict[Var, Expr], turn: Expr) -> tirx.Stmt:
            def row(number: Expr) -> tirx.Stmt:
                return loops_over(inner, lambda values: join({**at, axis: turn * rows + number, **values}))

            block = loop(_part(extent, rows, turn), row)
            return sequence(
                [fill(sums, self.neutral), block, each(lambda index: self.joined(total, index, sums[index]))]
            )

        blocks = loops_over(outer, lambda at: loop((extent + (rows - 1)) // rows, lambda turn: block(at, turn)))
        return sequence([fill(total, self.init), blocks, store(total)])


def _cast(value: Expr, array: Any) -> Expr:
    """Return a value in the dtype of an array."""
    dtype = str(array.ty.dtype)
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _part(extent: Expr, size: int, turn: Expr) -> Expr:
    """Return the number of an axis' elements in one block, of at most `size`."""
    if isinstance(extent, tirx.IntImm) and int(extent) % size == 0:
        return index_of(size)
    return tirx.min(extent - turn * size, size)
