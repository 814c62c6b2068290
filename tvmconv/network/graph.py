"""Reading and changing the bindings of a Relax module's "main"."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor


class Block:
    """The bindings of a dataflow block in order, and who reads each of its variables."""

    def __init__(self, block: relax.DataflowBlock) -> None:
        self.values = {binding.var: binding.value for binding in block.bindings}
        self._readers = relax.analysis.udchain(block)

    def only_reader(self, var: relax.Var) -> relax.Var | None:
        """The variable that is computed from `var`, if it is the only thing that `var` is read for."""
        # Only a DataflowVar cannot be read outside its block.
        if not isinstance(var, relax.DataflowVar) or len(self._readers[var]) != 1:
            return None
        return self._readers[var][0]


def blocks_of(mod: tvm.IRModule) -> list[Block]:
    """The dataflow blocks of "main" in order, those in the branches of an If too."""
    blocks: list[Block] = []

    @visitor
    class Collect(PyExprVisitor):  # type: ignore[misc]
        def visit_dataflow_block_(self, block: relax.DataflowBlock) -> None:
            blocks.append(Block(block))

    Collect().visit_expr(mod["main"])
    return blocks


def rebind(mod: tvm.IRModule, values: Mapping[relax.Var, relax.Expr]) -> tvm.IRModule:
    """The module with other values for some variables of "main", and without what only the old ones needed."""

    @mutator
    class Rebind(PyExprMutator):  # type: ignore[misc]
        def visit_var_binding_(self, binding: relax.VarBinding) -> None:
            super().visit_var_binding_(relax.VarBinding(binding.var, values.get(binding.var, binding.value)))

    mod = mod.clone()
    mod["main"] = Rebind(mod).visit_expr(mod["main"])
    return relax.transform.DeadCodeElimination()(mod)


def operator_name(value: relax.Expr) -> str | None:
    """The name of the operator that an expression calls, such as "relax.add"; None for anything else."""
    return str(value.op.name) if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else None
