"""The loops of one stage of a GPU's kernel over the columns of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from ..substitution import substitute
from ..workload import MAX_ELEMENTS
from .gpu_exchanges import joined_across, joined_along
from .gpu_plan import INDEX, TILE, loop, sequence, split_index, tested
from .gpu_tiles import stored_through_tiles
from .gpu_windows import reduced_by_sliding
from .stages import flat_index, loads_in, with_loads

if TYPE_CHECKING:
    from .gpu_loops import KernelLoops

WIDER = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}
"""The type in which threads join and exchange values of a narrow type."""

AT_ONCE = 4
"""The vectors that a thread loads before it uses the first, of a row that has more than it can keep."""


@dataclass
class Ahead:
    """A load of a vector that is made ahead, into registers."""

    source: Any
    place: Expr
    count: Expr | None
    """The number of columns of the stage that it is made in."""
    registers: Any
    tests: list[Expr]
    """The tests of which one has to hold for the load to be made; none if it is always made."""


class Columns:
    """The loops of one stage over a row's columns."""

    def __init__(self, kernel: KernelLoops, number: int, count: Expr | None) -> None:
        self.kernel, self.stage, self.plan = kernel, kernel.stages[number], kernel.plan
        self.number, self.is_last = number, number == len(kernel.stages) - 1
        self.count = count
        width = self.plan.threads * (self.plan.vector if self.plan.along else 1)
        steps = Analyzer().simplify(tirx.ceildiv(count, width)) if count is not None else tirx.const(1, INDEX)
        self.in_registers = isinstance(steps, tirx.IntImm) and int(steps) <= self.plan.most
        together = TILE // self.plan.threads if self.plan.parts else 1
        self.at_once = -(-(int(steps) if self.in_registers else AT_ONCE) // together) * together
        self.turns = Analyzer().simplify(tirx.ceildiv(steps, self.at_once))
        self.tests: list[Expr] = list(kernel.domain.tests) if self.is_last else []
        self.analyzer, self.axes = self._analyzer(), Analyzer()
        for axes in (kernel.domain.rows, kernel.domain.columns[number]):
            for var, extent in axes.items():
                self.axes.bind(var, Range(0, extent))
        self.values = self._values()
        self.loaded: list[Ahead] = []

    def _analyzer(self) -> Analyzer:
        kernel, analyzer = self.kernel, Analyzer()
        for size in kernel.sizes:
            analyzer.bind(size, Range(1, MAX_ELEMENTS + 1))
        ranges = {
            kernel.group: kernel.groups,
            kernel.lane: self.plan.threads,
            kernel.step: self.at_once,
            kernel.turn: self.turns,
            kernel.element: self.plan.vector,
        }
        for var, extent in ranges.items():
            analyzer.bind(var, Range(0, extent))
        return analyzer

    def _values(self) -> dict[Var, Expr]:
        """Return the axes of the stage as expressions of the kernel's loops; add the test that a column is there."""
        kernel, plan = self.kernel, self.plan
        row = kernel.group if plan.along else kernel.group * plan.vector + kernel.element
        if self.count is None:
            return self.placed(row, None)
        vector = (kernel.turn * self.at_once + kernel.step) * plan.threads + kernel.lane
        column = vector * plan.vector + kernel.element if plan.along else vector
        found = self.placed(row, column)
        if not self.analyzer.can_prove(column < self.count):
            self.tests.insert(0, column < self.count)
        first = {kernel.element: 0}  # a whole vector is there or none of it
        self.tests = [self.analyzer.simplify(substitute(substitute(test, found), first)) for test in self.tests]
        return found

    def placed(self, row: Expr, column: Expr | None) -> dict[Var, Expr]:
        """Return the axes of the stage for a row and a column, by their numbers."""
        domain = self.kernel.domain
        found = split_index(row, domain.rows)
        if column is not None:
            found.update(split_index(column, domain.columns[self.number]))
        return {**found, **{axis: substitute(place, found) for axis, place in domain.places[self.number].items()}}

    # Statements

    def reduced(self) -> list[tirx.Stmt]:
        """Return the statements of a reduction; all threads of a row have the results."""
        stage, plan, kernel = self.stage, self.plan, self.kernel
        size = 1 if plan.along else plan.vector
        targets = []
        for target in stage.targets:
            dtype = WIDER.get(str(target.ty.dtype), str(target.ty.dtype))
            targets.append((kernel.registers("result", size, dtype), dtype))
        place = tirx.const(0, INDEX) if plan.along else kernel.element
        steps: list[tirx.Stmt] = []
        for (register, dtype), init in zip(targets, stage.inits, strict=True):
            steps.append(self._each(tirx.BufferStore(register, init.astype(dtype), [place]), size))
        if plan.sliding is not None:
            steps += reduced_by_sliding(self, plan.sliding, *targets[0])
        else:
            updates = []
            for (register, dtype), value, join in zip(targets, stage.values, stage.joins, strict=True):
                term = self.value(value).astype(dtype)
                updates.append(tirx.BufferStore(register, join(register[place], term), [place]))
            steps += self._columns(self._each(sequence(updates), plan.vector))
        if plan.threads > 1:
            parts = zip((each for each, _ in targets), stage.joins, stage.inits, strict=True)
            for register, join, init in parts:
                along = plan.along
                steps += joined_along(kernel, register, join) if along else joined_across(kernel, register, join, init)
        kernel.results.update(zip(stage.targets, (register for register, _ in targets), strict=True))
        if self.is_last:
            results = zip(targets, stage.targets, strict=True)
            values = [register[place].astype(str(target.ty.dtype)) for (register, _), target in results]
            steps += self._stores(values, size)
        return steps

    def stored(self) -> list[tirx.Stmt]:
        """Return the statements of a map."""
        if self.plan.parts:
            return self._turns([*self._ahead(), *stored_through_tiles(self)])
        values = [self.value(value) for value in self.stage.values]
        if self.count is None:
            return [*self._copies(), *self._stores(values, 1 if self.plan.along else self.plan.vector)]
        body = self._stores(values, self.plan.vector)
        return self._columns(sequence(body))

    def _stores(self, values: list[Expr], size: int) -> list[tirx.Stmt]:
        """Return the statements that store an element of each target, or a vector of them."""
        kernel, stage, steps = self.kernel, self.stage, []
        for target, value in zip(stage.targets, values, strict=True):
            place = self._place(target, stage.indices)
            zeros = [tirx.const(0, INDEX)] * (len(target.ty.shape) - 1)
            if size > 1 and self._is_vector(place):
                out = kernel.registers("out", size, str(target.ty.dtype))
                steps.append(self._each(tirx.BufferStore(out, value, [kernel.element]), size))
                copy = tirx.BufferStore(target, out[kernel.element], [*zeros, place] if target.ty.shape else [])
                steps.append(loop(kernel.element, size, copy, tirx.ForKind.VECTORIZED))
            else:
                store = tirx.BufferStore(target, value, [*zeros, place] if target.ty.shape else [])
                there = [self.analyzer.simplify(substitute(test, self.values)) for test in kernel.domain.ragged]
                steps.append(self._each(tested(there, store), size))
        tests = [] if kernel.is_there is None or not kernel.meets else [kernel.is_there]
        if self._is_of_row and self.plan.threads > 1:
            tests.append(tirx.EQ(kernel.lane, tirx.const(0, INDEX)))
        return [tested(tests, sequence(steps))]

    @property
    def _is_of_row(self) -> bool:
        """True if what is stored is a row's, not that of a column."""
        return self.count is None or self.stage.is_reduction

    def _columns(self, body: tirx.Stmt) -> list[tirx.Stmt]:
        """Return the loops over columns around a statement, with the loads before it."""
        return self._turns([*self._ahead(), loop(self.kernel.step, self.at_once, tested(self.tests, body))])

    def _ahead(self) -> list[tirx.Stmt]:
        """Return the loop over the columns of a turn that makes loads ahead, if there are any."""
        copies = self._copies()
        return [loop(self.kernel.step, self.at_once, tested(self.tests, sequence(copies)))] if copies else []

    def _turns(self, steps: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Return statements for all columns, given those for the columns of a turn."""
        if isinstance(self.turns, tirx.IntImm) and int(self.turns) == 1:
            return [substitute(step, {self.kernel.turn: 0}) for step in steps]
        return [loop(self.kernel.turn, self.turns, sequence(steps), tirx.ForKind.SERIAL)]

    def _copies(self) -> list[tirx.Stmt]:
        """Return the statements that load vectors into registers, of one step."""
        kernel, size, steps = self.kernel, self.plan.vector, []
        for each in self.loaded:
            zeros = [tirx.const(0, INDEX)] * (len(each.source.ty.shape) - 1)
            load = each.source.vload([*zeros, each.place])
            copy = tirx.BufferStore(each.registers, load, [kernel.step * size + kernel.element])
            tests = [tirx.any(*each.tests)] if each.tests else []
            steps.append(tested(tests, loop(kernel.element, size, copy, tirx.ForKind.VECTORIZED)))
        if self.count is None:
            return [substitute(step, {kernel.step: 0}) for step in steps]
        return steps

    def _each(self, body: tirx.Stmt, size: int) -> tirx.Stmt:
        """Return a loop over the elements of a vector."""
        return loop(self.kernel.element, size, body)

    # Expressions

    def value(self, value: Expr) -> Expr:
        """Return a value with the kernel's loops in place of axes and with registers in place of what is in them."""
        placed = substitute(value, self.values)
        for load, conditions in loads_in(placed):
            if load.source not in self.kernel.results:
                self._keep(load, conditions)
        return with_loads(placed, self._register)

    def _keep(self, load: TensorLoad, conditions: tuple[Expr, ...]) -> None:
        """Have a load made ahead, into registers, if it is one of a vector, or of a row that is read again."""
        kernel, place = self.kernel, self._place(load.source, load.indices)
        test = self.analyzer.simplify(tirx.all(*conditions)) if conditions else tirx.const(True)
        always = isinstance(test, tirx.IntImm) and bool(test)
        if (known := self._kept(load.source, place)) is not None:
            if known.tests:
                known.tests = [] if always else [*known.tests, test]
            return
        stays = self.in_registers and self.count is not None and not self.is_last and always
        if kernel.element in undefined_vars(test) or not self._is_vector(place):
            return
        if not load.source.ty.shape or (self.plan.vector == 1 and not stays):
            return
        size = self.plan.vector * (1 if self.count is None else self.at_once)
        registers = kernel.registers("kept", size, str(load.source.ty.dtype))
        ahead = Ahead(load.source, place, self.count, registers, [] if always else [test])
        self.loaded.append(ahead)
        if stays:
            kernel.kept.append(ahead)

    def _register(self, load: TensorLoad) -> Expr:
        kernel = self.kernel
        if (register := kernel.results.get(load.source)) is not None:
            index = tirx.const(0, INDEX) if self.plan.along else kernel.element
            return register[index].astype(str(load.source.ty.dtype))
        place = self._place(load.source, load.indices)
        if (known := self._kept(load.source, place)) is not None:
            step = kernel.step if self.count is not None else 0
            return known.registers[step * self.plan.vector + kernel.element]
        if not load.source.ty.shape:
            return load
        return load.source.vload([*[tirx.const(0, INDEX)] * (len(load.indices) - 1), place])

    def _kept(self, source: Any, place: Expr) -> Ahead | None:
        for each in (*self.kernel.kept, *self.loaded):
            if each.source.same_as(source) and tvm_ffi.structural_equal((each.place, each.count), (place, self.count)):
                return each
        return None

    def _place(self, buffer: Any, indices: Iterable[Expr]) -> Expr:
        return self.flat(buffer, indices, self.values)

    def flat(self, buffer: Any, indices: Iterable[Expr], values: Mapping[Var, Expr]) -> Expr:
        """Return the place of an element in memory, simplified, with values for the axes of rows and columns."""
        places = self.kernel.domain.places[self.number]
        place = flat_index(buffer, [substitute(index, places) for index in indices])
        return self.analyzer.simplify(substitute(self.axes.simplify(place), values))

    def _is_vector(self, place: Expr) -> bool:
        """Return whether elements of a vector are one behind the other, in a place that a vector may have."""
        element, size = self.kernel.element, self.plan.vector
        first = substitute(place, {element: 0})
        return bool(
            self.analyzer.can_prove_equal(place - first, element)
            and self.analyzer.can_prove_equal(tirx.floormod(first, size), 0)
        )
