"""Kernels for a GPU of stages: each row of a network's operator by some threads, and what is read once kept at hand."""

from __future__ import annotations

from tvm import tirx
from tvm.sym import Analyzer

from tvmconv.compute.statements import launched, sequence
from tvmconv.lowering import OPAQUE

from .kernel import Kernel
from .plan import size_of
from .statements import Statements


class KernelLoops(Kernel):
    """The loops of a kernel that computes stages, with threads by a plan."""

    def scheduled(self) -> tirx.PrimFunc:
        """Return the function of the kernel."""
        plan, groups = self.plan, self.groups
        block, thread = self.block, self.thread
        quotient, rest = (tirx.floordiv, tirx.floormod)
        lane, row = (rest(thread, plan.threads), quotient(thread, plan.threads))
        if not plan.along:
            lane, row = quotient(thread, plan.rows), rest(thread, plan.rows)
        first = block * plan.rows + self.row
        body: list[tirx.Stmt] = [
            tirx.Bind(self.lane, lane),
            tirx.Bind(self.row, row),
            tirx.Bind(self.group, first if self.is_there is None or not self.meets else tirx.min(first, groups - 1)),
        ]
        steps = [step for number in range(len(self.stages)) for step in self._stage(number)]
        if self.is_there is not None and not self.meets:
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
            return loops.stored()
        return loops.reduced()
