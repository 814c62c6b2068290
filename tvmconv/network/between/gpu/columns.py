"""The columns of a row of one stage of a GPU's kernel, and the stage's expressions in terms of the kernel's loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.statements import INDEX, index_variable, loop, sequence, tested
from tvmconv.compute.substitution import substitute
from tvmconv.lowering.signatures import itemsize
from tvmconv.problem.workload import MAX_ELEMENTS

from ..stages import flat_index, loads_in, parts_of, variables_in, with_loads
from .choices import Choice, choices_in
from .kernel import ChoiceInRegisters, EarlyLoad, Kernel
from .plan import VECTOR_BYTES, split_index

SLOW = (tvm.ir.Call, tirx.Div, tirx.Cast)
"""The kinds of expressions that are computed once for each row where they can be: functions, quotients, and casts of
them."""

AT_ONCE = 4
"""The vectors that a thread loads before it uses the first, if a row has more than the thread can keep."""


class Columns:
    """The columns of one stage's rows, and the indices of those that a thread computes."""

    def __init__(self, kernel: Kernel, number: int, count: Expr | None) -> None:
        self.kernel, self.stage, self.plan = kernel, kernel.stages[number], kernel.plan
        self.number, self.is_last = number, number == len(kernel.stages) - 1
        self.count, self.vector = count, self.plan.vector
        width = self.plan.threads * (self.plan.vector if self.plan.has_column_vectors else 1)
        steps = Analyzer().simplify(tirx.ceildiv(count, width)) if count is not None else tirx.const(1, INDEX)
        self.in_registers = isinstance(steps, tirx.IntImm) and int(steps) <= self.plan.max_kept_vectors
        together = self.plan.tile // self.plan.threads if self.plan.through_tiles else 1
        self.at_once = -(-(int(steps) if self.in_registers else AT_ONCE) // together) * together
        self.turns = Analyzer().simplify(tirx.ceildiv(steps, self.at_once))
        self.tests: list[Expr] = list(kernel.domain.tests) if self.is_last else []
        self.analyzer, self.axes = self._analyzer(), Analyzer()
        for axes in (kernel.domain.rows, kernel.domain.columns[number]):
            for var, extent in axes.items():
                self.axes.bind(var, Range(0, extent))
        self.values = self._values()
        self.loaded: list[EarlyLoad] = []
        self.chosen: dict[Any, ChoiceInRegisters] = {}
        """The choices that are loaded ahead, by their registers."""
        self.of_rows: list[tirx.Stmt] = []
        """The statements that compute values of a whole row, which run before those of columns."""

    def _analyzer(self) -> Analyzer:
        kernel, analyzer = self.kernel, Analyzer()
        for size in kernel.sizes:
            analyzer.bind(size, Range(1, MAX_ELEMENTS + 1))
        ranges = {
            kernel.group: kernel.groups,
            kernel.lane: self.plan.threads,
            kernel.step: self.at_once,
            kernel.turn: self.turns,
            kernel.element: self.vector,
        }
        for var, extent in ranges.items():
            analyzer.bind(var, Range(0, extent))
        return analyzer

    def in_vectors(self, size: int, steps: int | None = None) -> Columns:
        """Return these columns with vectors of another size, and perhaps another number of steps that are loaded."""
        other = copy(self)
        other.vector, other.loaded, other.chosen = size, [], {}
        if steps is not None:
            other.count, other.at_once = tirx.const(steps, INDEX), steps
        other.analyzer = other._analyzer()
        return other

    def _values(self) -> dict[Var, Expr]:
        """Return the axes of the stage in terms of the kernel's loops; add the test that a column exists."""
        kernel, plan = self.kernel, self.plan
        row = kernel.group if plan.has_column_vectors else kernel.group * plan.vector + kernel.element
        if self.count is None:
            return self.axes_at(row, None)
        vector = (kernel.turn * self.at_once + kernel.step) * plan.threads + kernel.lane
        column = vector * plan.vector + kernel.element if plan.has_column_vectors else vector
        axes = self.axes_at(row, column)
        if not self.analyzer.can_prove(column < self.count):
            self.tests.insert(0, column < self.count)
        first = {kernel.element: 0}  # all columns of a vector exist, or none
        self.tests = [self.analyzer.simplify(substitute(substitute(test, axes), first)) for test in self.tests]
        return axes

    def axes_at(self, row: Expr, column: Expr | None) -> dict[Var, Expr]:
        """Return the axes of the stage for a row and a column, by their numbers."""
        domain = self.kernel.domain
        axes = split_index(row, domain.rows)
        if column is not None:
            axes.update(split_index(column, domain.columns[self.number]))
        return {**axes, **{axis: substitute(value, axes) for axis, value in domain.axis_values[self.number].items()}}

    def value(self, value: Expr) -> Expr:
        """Return a value in terms of the kernel's loops, with registers for the elements that they hold."""
        rewritten = self._with_rows_values(substitute(self._with_choices(value), self.values))
        for load, conditions in loads_in(rewritten):
            if load.source not in self.kernel.results and load.source not in self.chosen:
                self._keep(load, conditions)
        return with_loads(rewritten, self._register)

    def _with_choices(self, value: Expr) -> Expr:
        """Return a value with registers for its choices between vectors; a thread loads only the one that is chosen.

        Before: `y[c] = if_then_else(c < 64, a[c], b[c - 64]) * 2`. After: `if c < 64: r = a[c]`, `else: r = b[c - 64]`,
        and `y[c] = r * 2`.
        """
        kernel = self.kernel
        for choice in choices_in(value, {**self.stage.outer, **self.stage.reduced}):
            found = next((each for each in self.chosen.values() if each.is_of(choice.value)), None)
            if found is None and (found := self._chosen(choice)) is not None:
                self.chosen[found.registers] = found
            if found is None:
                continue
            step = kernel.step if self.count is not None else 0
            register = found.registers[step * self.vector + kernel.element]

            def known(call: tvm.ir.Call, found: ChoiceInRegisters = found, register: Expr = register) -> Expr:
                return register if found.is_of(call) else call

            value = tvm_ffi.structural_map(value, (tvm.ir.Call, known))
        return value

    def _chosen(self, choice: Choice) -> ChoiceInRegisters | None:
        """Return the registers for a choice between vectors and the statement that loads one; None for others."""
        kernel, operands = self.kernel, [substitute(operand, self.values) for operand in choice.operands]
        tests = [self._of_vectors(substitute(test, self.values)) for test in choice.tests]
        loads = [operand for operand in operands if isinstance(operand, TensorLoad)]
        offsets = [self.offset(load.source, load.indices) for load in loads]
        if self.vector == 1 or kernel.element in variables_in(tests) or not all(map(self.is_vector, offsets)):
            return None
        size = self.vector * (1 if self.count is None else self.at_once)
        registers = kernel.registers("chosen", size, str(choice.value.ty.dtype))
        copies = [self._copy(load.source, offset, registers) for load, offset in zip(loads, offsets, strict=True)]
        statement = choice.statement(tests, copies)
        if len(loads) < len(operands):  # the number is stored first, so that the load needs no other branch
            fill = tirx.BufferStore(registers, operands[-1], [kernel.step * self.vector + kernel.element])
            statement = sequence([loop(kernel.element, self.vector, fill), tested(tests[-1:], statement)])
        return ChoiceInRegisters(choice.value, registers, statement)

    def _with_rows_values(self, value: Expr) -> Expr:
        """Return a value with registers for slow parts of it that do not differ between the columns of a row.

        Before: `y[c] = x[c] * rsqrt(sum / 64)`. After: `r = rsqrt(sum / 64)`, and `y[c] = x[c] * r`.
        """
        if self.count is None:
            return value
        kernel = self.kernel
        for each in self._rows_values(value):
            size = 1 if self.plan.has_column_vectors else self.vector
            register = kernel.registers("row", size, str(each.ty.dtype))
            kernel.results[register] = register
            index = tirx.const(0, INDEX) if self.plan.has_column_vectors else kernel.element
            store = tirx.BufferStore(register, with_loads(each, self._register), [index])
            self.of_rows.append(loop(kernel.element, size, store))

            def known(expr: Expr, each: Expr = each, found: Expr = register[index]) -> Expr:
                return found if tvm_ffi.structural_equal(expr, each) else expr

            value = tvm_ffi.structural_map(value, (type(each), known))
        return value

    def _rows_values(self, value: Expr) -> list[Expr]:
        """Return the largest parts of a value that are slow and depend on a row's results alone."""
        if isinstance(value, SLOW) and self._is_row_value(value):
            slow: list[Expr] = []
            tvm_ffi.structural_walk(value, [(kind, slow.append) for kind in (tvm.ir.Call, tirx.Div)])
            if slow:
                return [value]
        if isinstance(value, TensorLoad):
            return []
        return [each for part in parts_of(value) for each in self._rows_values(part)]

    def _is_row_value(self, value: Expr) -> bool:
        others = with_loads(value, lambda load: tirx.const(0, load.ty.dtype))
        results = [load.source in self.kernel.results for load, _ in loads_in(value)]
        return bool(results) and all(results) and {*undefined_vars(others)} <= self.kernel.sizes

    def _keep(self, load: TensorLoad, conditions: tuple[Expr, ...]) -> None:
        """Plan a load ahead, into registers, if it loads a vector, or elements that a later stage loads again."""
        if any(True for index in load.indices for _ in loads_in(index)):
            return  # the elements have indices from a table, and are no vector
        kernel, offset = self.kernel, self.offset(load.source, load.indices)
        test = self._of_vectors(tirx.all(*conditions)) if conditions else tirx.const(True)
        always = isinstance(test, tirx.IntImm) and bool(test)
        if (known := self._kept(load.source, offset)) is not None:
            if known.tests:
                known.tests = [] if always else [*known.tests, test]
            return
        stays = self.in_registers and self.count is not None and not self.is_last and always
        if kernel.element in undefined_vars(test) or not self.is_vector(offset):
            return
        if not load.source.ty.shape or (self.vector == 1 and not stays):
            return
        size = self.vector * (1 if self.count is None else self.at_once)
        registers = kernel.registers("kept", size, str(load.source.ty.dtype))
        ahead = EarlyLoad(load.source, offset, self.count, registers, [] if always else [test])
        self.loaded.append(ahead)
        if stays:
            kernel.kept.append(ahead)

    def copies(self) -> list[tirx.Stmt]:
        """Return the statements that load vectors into registers, of one step."""
        steps = [each.statement for each in self.chosen.values()]
        for each in self.loaded:
            tests = [tirx.any(*each.tests)] if each.tests else []
            steps.append(tested(tests, self._copy(each.source, each.offset, each.registers)))
        if self.count is None:
            return [substitute(step, {self.kernel.step: 0}) for step in steps]
        return steps

    def _copy(self, source: Any, offset: Expr, registers: Any) -> tirx.Stmt:
        """Return the statement that loads the vector of a step, with at most `VECTOR_BYTES` at once."""
        kernel, zeros = self.kernel, [tirx.const(0, INDEX)] * (len(source.ty.shape) - 1)
        size, part = min(self.vector, VECTOR_BYTES // itemsize(source.ty.dtype)), index_variable("part")
        inside = part * size + kernel.element
        load = source.vload([*zeros, substitute(offset, {kernel.element: 0}) + inside])
        copy = tirx.BufferStore(registers, load, [kernel.step * self.vector + inside])
        return loop(part, self.vector // size, loop(kernel.element, size, copy, tirx.ForKind.VECTORIZED))

    def _register(self, load: TensorLoad) -> Expr:
        kernel = self.kernel
        if load.source in self.chosen:
            return load
        if (register := kernel.results.get(load.source)) is not None:
            index = tirx.const(0, INDEX) if self.plan.has_column_vectors else kernel.element
            return register[index].astype(str(load.source.ty.dtype))
        offset = self.offset(load.source, load.indices)
        if (known := self._kept(load.source, offset)) is not None:
            step = kernel.step if self.count is not None else 0
            return known.registers[step * self.vector + kernel.element]
        if not load.source.ty.shape:
            return load
        return load.source.vload([*[tirx.const(0, INDEX)] * (len(load.indices) - 1), offset])

    def _kept(self, source: Any, offset: Expr) -> EarlyLoad | None:
        wanted = offset, self.count
        for each in (*self.kernel.kept, *self.loaded):
            if each.source.same_as(source) and tvm_ffi.structural_equal((each.offset, each.count), wanted):
                return each
        return None

    def offset(self, buffer: Any, indices: Iterable[Expr]) -> Expr:
        """Return the offset of an element in memory, in terms of the kernel's loops."""
        return self.offset_with(buffer, indices, self.values)

    def offset_with(self, buffer: Any, indices: Iterable[Expr], values: Mapping[Var, Expr]) -> Expr:
        """Return the offset of an element in memory, simplified, with values for the axes of rows and columns."""
        axis_values = self.kernel.domain.axis_values[self.number]
        offset = flat_index(buffer, [substitute(index, axis_values) for index in indices])
        simplified = self.analyzer.simplify(substitute(self.axes.simplify(offset), values))
        return self._of_vectors(simplified)

    def _of_vectors(self, expr: Expr) -> Expr:
        """Return an expression, simplified, with its divisions and comparisons in terms of a vector's first element."""
        if self.vector > 1:
            kinds = (tirx.FloorDiv, self._divided), (tirx.FloorMod, self._divided)
            expr = tvm_ffi.structural_map(self.analyzer.simplify(expr), kinds)
            expr = tvm_ffi.structural_map(expr, ((tirx.LT, self._compared), (tirx.LE, self._compared)))
        return self.analyzer.simplify(expr)

    def _divided(self, division: tirx.FloorDiv | tirx.FloorMod) -> Expr:
        """Return a quotient or remainder by whole vectors in terms of a vector's first element, where TVM leaves it.

        Before: `(i * 8 + element) % 768`, in vectors of 8. After: `i * 8 % 768 + element`.
        """
        first = self._first(division.a)
        if first is None or not self._is_whole(division.b):
            return division
        return type(division)(first, division.b) + (self.kernel.element if isinstance(division, tirx.FloorMod) else 0)

    def _compared(self, test: tirx.LT | tirx.LE) -> Expr:
        """Return a comparison with whole vectors as one of a vector's first element.

        Before: `64 <= i * 8 % 128 + element`, in vectors of 8. After: `64 <= i * 8 % 128`.
        """
        value, limit = (test.a, test.b) if isinstance(test, tirx.LT) else (test.b, test.a)
        first = self._first(value)
        if first is None or not self._is_whole(limit):
            return test
        return first < limit if isinstance(test, tirx.LT) else limit <= first

    def _first(self, offset: Expr) -> Expr | None:
        """Return the offset of a vector's first element, given that of each; None where they are no vector."""
        return self.analyzer.simplify(substitute(offset, {self.kernel.element: 0})) if self.is_vector(offset) else None

    def _is_whole(self, size: Expr) -> bool:
        return bool(self.analyzer.can_prove_equal(tirx.floormod(size, self.vector), 0))

    def is_vector(self, offset: Expr) -> bool:
        """Return whether a vector's elements are contiguous, and begin at a multiple of the vector's size."""
        element = self.kernel.element
        first = substitute(offset, {element: 0})
        return bool(self.analyzer.can_prove_equal(offset - first, element)) and self._is_whole(first)
