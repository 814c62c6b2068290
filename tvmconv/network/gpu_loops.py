"""Kernels for a GPU of stages: each row of a network's operator by some threads, and what is read once kept at hand."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer

from ..lowering import OPAQUE
from .gpu_columns import Ahead, Columns
from .gpu_plan import INDEX, Domain, Plan, index_variable, sequence, size_of
from .stages import Stage, variables_in


class KernelLoops:
    """The loops of a kernel that computes stages, with threads by a plan."""

    def __init__(self, func: tirx.PrimFunc, stages: list[Stage], domain: Domain, plan: Plan) -> None:
        self.func, self.stages, self.domain, self.plan = func, stages, domain, plan
        self.buffers: list[Any] = []
        self.results: dict[Any, Any] = {}
        """The registers with the results of reductions, by the reductions' targets."""
        self.kept: list[Ahead] = []
        """The loads that stay in registers for later stages."""
        self.block, self.thread = index_variable("block"), index_variable("thread")
        self.group, self.row, self.lane, self.step, self.turn, self.element = (
            index_variable(name) for name in ("group", "row", "lane", "step", "turn", "element")
        )
        self.sizes = {var for param in func.params for var in variables_in(getattr(param.ty, "shape", ()))}
        """The sizes that are known only when the kernel runs."""

    def scheduled(self) -> tirx.PrimFunc:
        """Return the function of the kernel."""
        plan = self.plan
        count = size_of(self.domain.rows)
        groups = count if plan.along else tirx.floordiv(count, plan.vector)
        groups = self.groups = Analyzer().simplify(groups)
        self.is_whole = Analyzer().can_prove_equal(tirx.floormod(groups, plan.rows), 0)
        block, thread = self.block, self.thread
        quotient, rest = (tirx.floordiv, tirx.floormod)
        lane, row = (rest(thread, plan.threads), quotient(thread, plan.threads))
        if not plan.along:
            lane, row = quotient(thread, plan.rows), rest(thread, plan.rows)
        first = block * plan.rows + self.row
        body: list[tirx.Stmt] = [
            tirx.Bind(self.lane, lane),
            tirx.Bind(self.row, row),
            tirx.Bind(self.group, first if self.is_whole or not self.meets else tirx.min(first, groups - 1)),
        ]
        self.is_there = None if self.is_whole else first < groups
        steps = [step for number in range(len(self.stages)) for step in self._stage(number)]
        if self.is_there is not None and not self.meets:
            steps = [tirx.IfThenElse(self.is_there, sequence(steps), None)]
        extents = {block: tirx.ceildiv(groups, plan.rows), thread: tirx.const(plan.rows * plan.threads, INDEX)}
        nest: tirx.Stmt = tirx.SeqStmt([*body, *steps])
        for var, tag in ((thread, "threadIdx.x"), (block, "blockIdx.x")):
            axis = tirx.IterVar(None, index_variable(tag), tirx.IterVar.ThreadIndex, tag)
            extent = Analyzer().simplify(extents[var])
            nest = tirx.For(var, tirx.const(0, INDEX), extent, tirx.ForKind.THREAD_BINDING, nest, axis)
        root = SBlock([], [], [], "root", nest, alloc_buffers=self.buffers)
        func = tirx.PrimFunc(self.func.params, SBlockRealize([], True, root), self.func.ret_type, attrs=self.func.attrs)
        return func.with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})

    @property
    def meets(self) -> bool:
        """True if the threads of a block exchange values."""
        return self.plan.threads > 1

    def _stage(self, number: int) -> list[tirx.Stmt]:
        stage, columns = self.stages[number], self.domain.columns[number]
        count = size_of(columns) if columns or stage.is_reduction else None
        loops = Columns(self, number, count)
        if not stage.is_reduction:
            return loops.stored()
        return loops.reduced()

    def registers(self, name: str, size: int, dtype: str, scope: str = "local") -> Any:
        """Return a new buffer."""
        buffer = tirx.decl_buffer((size,), dtype, f"{name}_{len(self.buffers)}", scope=scope)
        self.buffers.append(buffer)
        return buffer
