"""TVM's checks of what a function is called with, of which LLVM makes half of the code of a small one."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprVisitor, visitor

CALLED_PACKED = 1
"""The calling convention of a function with TVM's checks in it, `CallingConv::kCPackedFunc`."""

OWN_CODE = "compute_scope"
"""The key of TVM's attribute around the code of a function itself, behind the checks of its arguments."""


def functions_of_inputs(mod: tvm.IRModule) -> set[str]:
    """Return the names of the functions that a network calls with its inputs, as they are or as views of them.

    The network is lowered, as its bytecode is made of it. It calls all others with constants and with memory that it
    has allocated for them.
    """
    found: set[str] = set()

    @visitor
    class Collect(PyExprVisitor):  # type: ignore[misc]
        def __init__(self, given: list[relax.Var]) -> None:
            super().__init__()
            self.given = set(given)

        def visit_var_binding_(self, binding: relax.VarBinding) -> None:
            super().visit_var_binding_(binding)
            self.note(binding)

        def visit_match_cast_(self, binding: relax.MatchCast) -> None:
            super().visit_match_cast_(binding)
            self.note(binding)

        def note(self, binding: relax.Binding) -> None:
            value = binding.value
            if self.given.isdisjoint(relax.analysis.free_vars(value)):
                return
            if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                found.add(value.op.name_hint)
            else:
                self.given.add(binding.var)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            count = int(func.attrs.get("num_input", len(func.params))) if func.attrs else len(func.params)
            Collect(list(func.params)[:count]).visit_expr(func)
    return found


def without_checks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function that TVM has given a packed interface, without the checks of its arguments; its own stay.

    Before: `assert num_args == 2; ...; assert x.ndim == 4; with T.attr({"compute_scope": ...}): assert granted; A`.
    After: `...; with T.attr({"compute_scope": ...}): assert granted; A`.
    """
    if int(func.attrs.get("calling_conv", 0)) != CALLED_PACKED:
        return func
    return func.with_body(_without_checks(func.body))


def _without_checks(step: Any) -> Any:
    if isinstance(step, tirx.AssertStmt):
        return tirx.Evaluate(0)
    if isinstance(step, tirx.SeqStmt):
        return tirx.stmt_seq(*map(_without_checks, step.seq))
    if isinstance(step, tirx.IfThenElse):  # what has no strides is contiguous
        return tirx.IfThenElse(step.condition, _without_checks(step.then_case), None)
    if isinstance(step, tirx.AttrStmt) and step.attr_key != OWN_CODE:
        return tirx.AttrStmt(step.node, step.attr_key, step.value, _without_checks(step.body))
    return step
