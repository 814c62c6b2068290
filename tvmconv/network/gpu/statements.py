"""The statements of one stage of a kernel for a GPU: loops over columns, and what a row's threads exchange."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from ...substitution import substitute
from .columns import Columns
from .exchanges import joined_across, joined_along
from .plan import INDEX, loop, sequence, tested
from .tiles import stored_through_tiles
from .windows import reduced_by_sliding

WIDER = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}
"""The type in which threads join and exchange values of a narrow type."""


class Statements(Columns):
    """The loops of one stage over a row's columns, as statements."""

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
            tiles = stored_through_tiles(self)
            return self._turns([*self._ahead(), *tiles])
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
            if size > 1 and self.is_vector(place):
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
