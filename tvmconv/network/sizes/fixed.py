"""Open sizes that can have one value only: they are replaced by that number in the whole module."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from .facts import SizeFacts

CALL = tvm.ir.Op.get("relax.call_tir")


def with_fixed_sizes(mod: tvm.IRModule, facts: SizeFacts) -> tvm.IRModule:
    """Return an imported module with numbers for open sizes that have one value, in the functions that it calls, too.

    Before: `y = R.call_tir(copy, (x,))`, x of (n, 4), `copy(a: (m, 4), b: (m, 4))`, and n is 2 by a condition.
    After: x of (2, 4), `copy_2(a: (2, 4), b: (2, 4))`. FuseTIR would take the shapes (m, 4) and (2, 4) for different
    ones.
    """
    sizes = {str(size) for parameter in mod["main"].params for size in parameter.ty.shape or ()}
    fixed = {name: value for name, value in facts.fixed.items() if name in sizes}
    if not fixed:
        return mod
    main = mod["main"].bind_symbolic_vars(fixed)
    specializer = _Specializer(mod)
    specializer.builder_.update_func(mod.get_global_var("main"), specializer.visit_expr(main))
    return relax.transform.DeadCodeElimination()(specializer.builder_.finalize())


@mutator
class _Specializer(PyExprMutator):  # type: ignore[misc]
    """Calls functions with numbers for those of their sizes that are numbers where they are called."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        func = self._mod.functions.get(call.args[0]) if call.op == CALL else None
        if not isinstance(func, tirx.PrimFunc):
            return call
        operands = list(call.args[1].fields)
        known = _known(func, operands)
        if not known:
            return call
        sizes = [var for var in known if not any(var.same_as(param) for param in func.params)]
        whole = tirx.PrimFunc([*func.params, *sizes], func.body, func.ret_type, func.attrs)
        name = self.builder_.add_func(whole.specialize(known), call.args[0].name_hint)
        left = [
            operand
            for param, operand in zip(func.params, operands, strict=False)
            if not any(param.same_as(var) for var in known)
        ]
        return relax.call_tir(name, relax.Tuple(left), list(call.ty_args))


def _known(func: tirx.PrimFunc, operands: list[relax.Expr]) -> dict[Any, Any]:
    """Return the numbers for parameters, and for sizes of parameters, that follow from operands."""
    known: dict[Any, Any] = {}
    for param, operand in zip(func.params, operands, strict=False):
        if isinstance(operand.ty, relax.TensorType):
            for var, size in zip(param.ty.shape, operand.ty.shape or (), strict=False):
                if isinstance(var, tvm.ir.Var) and isinstance(size, tirx.IntImm):
                    known[var] = size
        elif isinstance(operand, tirx.IntImm):
            known[param] = operand
    return known
