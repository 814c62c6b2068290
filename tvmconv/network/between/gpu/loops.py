"""Kernels for a GPU of stages: some threads compute each row, and keep elements that they read again in registers.

Each stage has loops over the columns of a row, and statements with which the threads of a row exchange values.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr, Range
from tvm.sym import Analyzer

from tvmconv.compute.statements import ZERO, barrier, exchange, halves, index_variable, launched, loop, sequence, tested
from tvmconv.compute.substitution import substitute
from tvmconv.lowering import OPAQUE
from tvmconv.lowering.signatures import itemsize
from tvmconv.targets.devices import WARP

from ..stages import Join
from .columns import Columns
from .kernel import Kernel
from .plan import size_of
from .tiles import stored_through_tiles
from .windows import sliding_reduction

MAX_STORED = 32
"""The bytes of the widest vector that is stored at once."""

WIDER = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}
"""The type in which threads join and exchange values of a narrow type."""


class Statements(Columns):
    """The loops of one stage over a row's columns, as statements."""

    def reduction_statements(self) -> list[tirx.Stmt]:
        """Return the statements of a reduction; all threads of a row have the results."""
        stage, plan, kernel = self.stage, self.plan, self.kernel
        size = 1 if plan.has_column_vectors else plan.vector
        targets = []
        for target in stage.targets:
            dtype = WIDER.get(str(target.ty.dtype), str(target.ty.dtype))
            targets.append((kernel.registers("result", size, dtype), dtype))
        index = ZERO if plan.has_column_vectors else kernel.element
        steps: list[tirx.Stmt] = []
        if plan.sliding is not None:
            steps += sliding_reduction(self, plan.sliding, *targets[0])
        else:
            for (register, dtype), init in zip(targets, stage.inits, strict=True):
                steps.append(self._each(tirx.BufferStore(register, init.astype(dtype), [index]), size))
            updates = []
            for (register, dtype), value, join in zip(targets, stage.values, stage.joins, strict=True):
                term = self.value(value).astype(dtype)
                updates.append(tirx.BufferStore(register, join(register[index], term), [index]))
            columns = self._columns(self._each(sequence(updates), plan.vector))
            steps += [*self.of_rows, *columns]
        if plan.threads > 1:
            for (register, _), join, init in zip(targets, stage.joins, stage.inits, strict=True):
                if plan.has_column_vectors:
                    steps += _join_neighbouring_threads(kernel, register, join)
                else:
                    steps += _join_distant_threads(kernel, register, join, init)
        kernel.results.update(zip(stage.targets, (register for register, _ in targets), strict=True))
        if self.is_last:
            results = zip(targets, stage.targets, strict=True)
            values = [register[index].astype(str(target.ty.dtype)) for (register, _), target in results]
            steps += self._stores(values, size)
        return steps

    def map_statements(self) -> list[tirx.Stmt]:
        """Return the statements of a map."""
        if self.plan.through_tiles:
            tiles = stored_through_tiles(self)
            return [*self.of_rows, *self._turns([*self._ahead(), *tiles])]
        values = [self.value(value) for value in self.stage.values]
        if self.count is None:
            return [*self.copies(), *self._stores(values, 1 if self.plan.has_column_vectors else self.plan.vector)]
        body = self._stores(values, self.plan.vector)
        return [*self.of_rows, *self._columns(sequence(body))]

    def _stores(self, values: list[Expr], size: int) -> list[tirx.Stmt]:
        """Return the statements that store an element of each target, or a vector of them."""
        kernel, stage, part, run = self.kernel, self.stage, index_variable("part"), min(size, self.plan.run)
        at, ranges, steps = {kernel.element: part * run + kernel.element}, self.in_vectors(run), list[tirx.Stmt]()
        ranges.analyzer.bind(part, Range(0, size // run))
        ranges.values = {axis: substitute(each, at) for axis, each in self.values.items()}
        there = [substitute(test, ranges.values) for test in kernel.domain.row_tests]
        for target, value in zip(stage.targets, (substitute(value, at) for value in values), strict=True):
            offset = ranges.offset(target, stage.indices)
            zeros = [ZERO] * (len(target.ty.shape) - 1)
            if run > 1 and ranges.is_vector(offset):
                out = kernel.registers("out", run, str(target.ty.dtype))
                fill = self._each(tirx.BufferStore(out, value, [kernel.element]), run)
                copy = tirx.BufferStore(target, out[kernel.element], [*zeros, offset] if target.ty.shape else [])
                first = [substitute(test, {kernel.element: 0}) for test in there]
                # A vector of bytes that are read may have more elements than the widest vector that is stored.
                width, chunk = min(run, MAX_STORED // itemsize(target.ty.dtype)), index_variable("chunk")
                copy = substitute(copy, {kernel.element: chunk * width + kernel.element})
                copies = loop(chunk, run // width, loop(kernel.element, width, copy, tirx.ForKind.VECTORIZED))
                body = sequence([fill, copies])
                steps.append(tested(list(map(ranges.analyzer.simplify, first)), body))
            else:
                store = tirx.BufferStore(target, value, [*zeros, offset] if target.ty.shape else [])
                steps.append(self._each(tested(list(map(ranges.analyzer.simplify, there)), store), run))
        steps = [loop(part, size // run, step) for step in steps]
        tests = [] if kernel.is_there is None or not kernel.exchanges_values else [kernel.is_there]
        if self._is_of_row and self.plan.threads > 1:
            tests.append(tirx.EQ(kernel.lane, ZERO))
        return [tested(tests, sequence(steps))]

    @property
    def _is_of_row(self) -> bool:
        """True if values are stored for each row, not for each column."""
        return self.count is None or self.stage.is_reduction

    def _columns(self, body: tirx.Stmt) -> list[tirx.Stmt]:
        """Return the loops over columns around a statement, with the loads before it."""
        return self._turns([*self._ahead(), loop(self.kernel.step, self.at_once, tested(self.tests, body))])

    def _ahead(self) -> list[tirx.Stmt]:
        """Return the loop over the columns of a turn that makes loads ahead, if there are any."""
        copies = self.copies()
        return [loop(self.kernel.step, self.at_once, tested(self.tests, sequence(copies)))] if copies else []

    def _turns(self, steps: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Return statements for all columns, given those for the columns of a turn."""
        if isinstance(self.turns, tirx.IntImm) and int(self.turns) == 1:
            return [substitute(step, {self.kernel.turn: 0}) for step in steps]
        return [loop(self.kernel.turn, self.turns, sequence(steps), tirx.ForKind.SERIAL)]

    def _each(self, body: tirx.Stmt, size: int) -> tirx.Stmt:
        """Return a loop over the elements of a vector."""
        return loop(self.kernel.element, size, body)


class KernelLoops(Kernel):
    """The loops of a kernel that computes stages, with threads by a plan."""

    def scheduled(self) -> tirx.PrimFunc:
        """Return the function of the kernel."""
        plan, groups = self.plan, self.groups
        block, thread = self.block, self.thread
        quotient, rest = (tirx.floordiv, tirx.floormod)
        lane, row = (rest(thread, plan.threads), quotient(thread, plan.threads))
        if not plan.has_column_vectors:
            lane, row = quotient(thread, plan.rows), rest(thread, plan.rows)
        first = block * plan.rows + self.row
        clamps = self.is_there is not None and self.exchanges_values
        body: list[tirx.Stmt] = [
            tirx.Bind(self.lane, lane),
            tirx.Bind(self.row, row),
            tirx.Bind(self.group, tirx.min(first, groups - 1) if clamps else first),
        ]
        steps = [step for number in range(len(self.stages)) for step in self._stage(number)]
        if self.is_there is not None and not self.exchanges_values:
            steps = [tirx.IfThenElse(self.is_there, sequence(steps), None)]
        extents = {thread: plan.rows * plan.threads, block: Analyzer().simplify(tirx.ceildiv(groups, plan.rows))}
        root = launched(tirx.SeqStmt([*body, *steps]), extents, self.buffers)
        func = tirx.PrimFunc(self.func.params, root, self.func.ret_type, attrs=self.func.attrs)
        return func.with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})

    def _stage(self, number: int) -> list[tirx.Stmt]:
        stage, columns = self.stages[number], self.domain.columns[number]
        count = size_of(columns) if columns or stage.is_reduction else None
        loops = Statements(self, number, count)
        if not stage.is_reduction:
            return loops.map_statements()
        return loops.reduction_statements()


def _join_neighbouring_threads(kernel: Kernel, register: Any, join: Join) -> list[tirx.Stmt]:
    """Return the statements that join the values of a row's threads, which are neighbours; all get the result."""
    threads = kernel.plan.threads
    steps = [exchange(register, join, distance) for distance in halves(min(threads, WARP))]
    if threads <= WARP:
        return steps
    warps = threads // WARP
    shared = kernel.registers("shared", warps * kernel.plan.rows, str(register.ty.dtype), "shared")
    begin = kernel.row * warps
    store = tirx.BufferStore(shared, register[0], [begin + tirx.floordiv(kernel.lane, WARP)])
    load = tirx.BufferStore(register, shared[begin + tirx.floormod(kernel.lane, warps)], [ZERO])
    return [
        *steps,
        tirx.IfThenElse(_is_zero(tirx.floormod(kernel.lane, WARP)), store, None),
        barrier(),
        load,
        *(exchange(register, join, distance) for distance in halves(warps)),
    ]


def _join_distant_threads(kernel: Kernel, register: Any, join: Join, init: Expr) -> list[tirx.Stmt]:
    """Return the statements that join the values of a row's threads, which are as far apart as a block has rows.

    Each thread has values of a vector of rows; all get the results.
    """
    plan, dtype, element = kernel.plan, str(register.ty.dtype), kernel.element
    together = max(1, min(WARP // plan.rows, plan.threads))
    steps = []
    for distance in halves(together):
        step = exchange(register, join, distance * plan.rows, element)
        steps.append(loop(element, plan.vector, step))
    groups = plan.threads // together
    if groups == 1:
        return steps
    width = plan.rows * plan.vector
    shared = kernel.registers("shared", width * groups, dtype, "shared")
    row_element = kernel.row * plan.vector + element
    store = tirx.BufferStore(shared, register[element], [tirx.floordiv(kernel.lane, together) * width + row_element])
    begin = tirx.BufferStore(register, init.astype(dtype), [element])
    update = tirx.BufferStore(register, join(register[element], shared[kernel.step * width + row_element]), [element])
    stored = loop(element, plan.vector, store)
    if together > 1:
        stored = tirx.IfThenElse(_is_zero(tirx.floormod(kernel.lane, together)), stored, None)
    return [
        *steps,
        stored,
        barrier(),
        loop(element, plan.vector, begin),
        loop(kernel.step, groups, loop(element, plan.vector, update)),
    ]


def _is_zero(value: Expr) -> Expr:
    return tirx.EQ(value, ZERO)
