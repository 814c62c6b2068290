"""A kernel for a GPU that is being made: its stages, its threads, and the registers that it has so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.sym import Analyzer

from tvmconv.compute.statements import index_variable

from ..stages import Stage, variables_in
from .plan import Domain, Plan, size_of


@dataclass
class EarlyLoad:
    """A load of a vector that is made ahead, into registers."""

    source: Any
    offset: Expr
    count: Expr | None
    """The number of columns of the stage that makes the load."""
    registers: Any
    tests: list[Expr]
    """The tests of which one has to hold for the load to be made; none if it is always made."""


@dataclass
class ChoiceInRegisters:
    """A choice between vectors of which one is loaded ahead, into registers."""

    value: Expr
    registers: Any
    statement: tirx.Stmt

    def is_of(self, value: Expr) -> bool:
        """Return whether a value is this choice."""
        return bool(tvm_ffi.structural_equal(self.value, value))


class Kernel:
    """A kernel that computes stages, with threads by a plan, while it is built."""

    def __init__(self, func: tirx.PrimFunc, stages: list[Stage], domain: Domain, plan: Plan) -> None:
        self.func, self.stages, self.domain, self.plan = func, stages, domain, plan
        self.buffers: list[Any] = []
        self.results: dict[Any, Any] = {}
        """The registers with the results of reductions, by the reductions' targets, and those with values of rows."""
        self.kept: list[EarlyLoad] = []
        """The loads that stay in registers for later stages."""
        self.block, self.thread = index_variable("block"), index_variable("thread")
        self.group, self.row, self.lane, self.step, self.turn, self.element = (
            index_variable(name) for name in ("group", "row", "lane", "step", "turn", "element")
        )
        self.sizes = {var for param in func.params for var in variables_in(getattr(param.ty, "shape", ()))}
        """The sizes that are known only when the kernel runs."""
        count = size_of(domain.rows)
        self.groups = Analyzer().simplify(count if plan.has_column_vectors else tirx.floordiv(count, plan.vector))
        """The number of rows, or of vectors of them."""
        is_whole = Analyzer().can_prove_equal(tirx.floormod(self.groups, plan.rows), 0)
        self.is_there = None if is_whole else self.block * plan.rows + self.row < self.groups
        """The test for a thread's group to exist; None where all do."""

    @property
    def exchanges_values(self) -> bool:
        """True if the threads of a block exchange values."""
        return self.plan.threads > 1

    def registers(self, name: str, size: int, dtype: str, scope: str = "local") -> Any:
        """Return a new buffer."""
        buffer = tirx.decl_buffer((size,), dtype, f"{name}_{len(self.buffers)}", scope=scope)
        self.buffers.append(buffer)
        return buffer
