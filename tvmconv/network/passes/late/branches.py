"""Branches of a network as functions: TVM fuses operators, and shares memory between tensors, in functions alone."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...graph.graph import free_variables, has_branches


def outline_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a function for each branch of "main" whose sizes are all sizes of what it reads.

    Before: `if test: a = R.exp(x); y = R.add(a, a) else: ...`.
    After: `if test: y = branch(x) else: ...` and `def branch(x): a = R.exp(x); y = R.add(a, a); return y`.
    """
    if not has_branches(mod):
        return mod

    @mutator
    class Outline(PyExprMutator):  # type: ignore[misc]
        def visit_if_(self, choice: relax.If) -> relax.Expr:
            branches = [self.outlined(branch) for branch in (choice.true_branch, choice.false_branch)]
            return relax.If(self.visit_expr(choice.cond), *branches)

        def outlined(self, branch: relax.SeqExpr) -> relax.SeqExpr:
            """Return a branch that calls its function; nested branches come first."""
            branch = self.visit_expr(branch)
            variables = free_variables(branch)
            function = relax.Function(variables, branch, branch.ty)
            if not branch.blocks or relax.analysis.free_symbolic_vars(function):
                return branch
            function = relax.utils.copy_with_new_vars(function)
            name = self.builder_.add_func(function, "branch")
            result = relax.Var("result", branch.ty)
            return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, name(*variables))])], result)

    outline = Outline(mod)
    outline.builder_.update_func(mod.get_global_var("main"), outline.visit_expr(mod["main"]))
    return outline.builder_.get()
