"""Reading and rewriting the bindings of a Relax module's "main"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from .branch_errors import FITTING_BRANCH

Branch: TypeAlias = tuple[tuple[int, bool], ...]
"""The branch of an If that code is in: the number of the If's test and the test's value, after those of outer
branches."""


class Block:
    """The bindings of a dataflow block in order, with the readers of each variable, and the branch that it is in."""

    def __init__(self, block: relax.DataflowBlock, branch: Branch = ()) -> None:
        bindings = list(block.bindings)  # each of TVM's lists is read element by element
        self.values = {binding.var: binding.value for binding in bindings}
        self.casts = [binding.var for binding in bindings if isinstance(binding, relax.MatchCast)]
        self.branch = branch
        # Variables that are read outside, and those that define sizes of other variables.
        outer = [var for var in self.values if not isinstance(var, relax.DataflowVar)]
        self._ends = [*self.casts, *outer]
        self._readers = relax.analysis.udchain(block)

    def only_reader(self, var: relax.Var) -> relax.Var | None:
        """Return the variable that is computed from `var`, if it is the only reader of `var`."""
        return self._readers[var][0] if self.is_inner(var) and len(self._readers.get(var, [])) == 1 else None

    def is_inner(self, var: relax.Var) -> bool:
        """Return whether a variable cannot be read outside the block."""
        return isinstance(var, relax.DataflowVar)

    def forget_value(self, var: relax.Var) -> None:
        """Forget the value of a variable, because other values are about to replace the variables that computed it."""
        del self.values[var]

    def readers(self, var: relax.Var) -> list[relax.Var]:
        """Return the variables of the block that are computed from `var`."""
        return list(self._readers.get(var, []))

    def live(self, values: Mapping[relax.Var, Sequence[relax.Expr]]) -> list[relax.Var]:
        """Return, in order, the variables that the block's outputs depend on if some variables had other `values`."""
        waiting, found = list(self._ends), set[relax.Var]()
        while waiting:
            if (var := waiting.pop()) not in found and var in self.values:
                found.add(var)
                waiting += free_variables(*values.get(var, [self.values[var]]))
        return [var for var in self.values if var in found]


def free_variables(*expressions: relax.Expr) -> list[relax.Var]:
    """Return the variables that some expressions read, without sizes."""
    found = (var for each in expressions for var in relax.analysis.free_vars(each))
    return [var for var in found if not isinstance(var.ty, tvm.ir.PrimType)]


def blocks_of(mod: tvm.IRModule) -> list[Block]:
    """Return the dataflow blocks of "main" in order, including those in the branches of an If."""
    blocks: list[Block] = []
    numbers: dict[relax.Var, int | None] = {}
    branch: Branch = ()

    @visitor
    class Collect(PyExprVisitor):  # type: ignore[misc]
        def visit_dataflow_block_(self, block: relax.DataflowBlock) -> None:
            blocks.append(Block(block, branch))
            numbers.update((var, number_of_test(value)) for var, value in blocks[-1].values.items())

        def visit_if_(self, choice: relax.If) -> None:
            nonlocal branch
            outside, number = branch, numbers.get(choice.cond)
            for holds, body in ((True, choice.true_branch), (False, choice.false_branch)):
                branch = outside if number is None else (*outside, (number, holds))
                self.visit_expr(body)
            branch = outside

    Collect().visit_expr(mod["main"])
    return blocks


def number_of_test(value: relax.Expr) -> int | None:
    """Return the number that an importer gave the test of an If by `numbered_test`; None for any other value."""
    if operator_name(value) != "relax.call_pure_packed" or len(value.args) != 3:
        return None
    function, _, number = value.args
    return int(number) if function.global_symbol == FITTING_BRANCH and isinstance(number, tvm.tirx.IntImm) else None


def has_branches(mod: tvm.IRModule) -> bool:
    """Return whether "main" chooses between branches when it runs."""
    bindings = (binding for block in mod["main"].body.blocks for binding in block.bindings)
    return any(isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.If) for binding in bindings)


def rebind(mod: tvm.IRModule, values: Mapping[relax.Var, relax.Expr]) -> tvm.IRModule:
    """Return the module with other values for some variables of "main", without bindings that only the old ones needed.

    A value may have another type than the old one: then so has what is computed from it.
    """
    made_of = {var: [value] for var, value in values.items()}
    live = {var for block in blocks_of(mod) for var in block.live(made_of)}

    @mutator
    class Rebind(PyExprMutator):  # type: ignore[misc]
        def visit_var_binding_(self, binding: relax.VarBinding) -> None:
            if isinstance(binding.var, relax.DataflowVar) and binding.var not in live:
                return
            value = self.builder_.normalize(self.visit_expr(values.get(binding.var, binding.value)))
            var = self.with_type(self.visit_var_def(binding.var), value.ty)
            self.builder_.emit_normalized(relax.VarBinding(var, value))
            self.set_var_remap(binding.var, var)

    mod = mod.clone()
    mod["main"] = Rebind(mod).visit_expr(mod["main"])
    return relax.transform.DeadCodeElimination()(mod)


def operator_name(value: relax.Expr) -> str | None:
    """Return the name of the operator that an expression calls, such as "relax.add"; None for anything else."""
    return str(value.op.name) if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else None


def calls(value: relax.Expr | None, *names: str) -> bool:
    """Return whether a value calls one of some operators, such as "add" for "relax.add"."""
    return (operator_name(value) or "").removeprefix("relax.") in names


def call_of(value: relax.Expr | None, *names: str) -> Any:
    """Return a value that calls one of some operators, such as "add" for "relax.add"; None for any other."""
    return value if calls(value, *names) else None


def concat_of(value: relax.Expr | None) -> tuple[int | None, list[relax.Var]]:
    """Return the axis along which a value joins variables, and these; None and no variables for any other value."""
    concat = call_of(value, "concat")
    if concat is None or concat.attrs.axis is None or not isinstance(concat.args[0], relax.Tuple):
        return None, []
    fields = list(concat.args[0].fields)
    if not fields or not all(isinstance(each, relax.Var) for each in fields) or fields[0].ty.ndim < 0:
        return None, []
    return int(concat.attrs.axis) % fields[0].ty.ndim, fields  # a new concatenation has no type yet
