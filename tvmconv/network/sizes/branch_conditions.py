"""Conditions of sizes that have to hold only if a branch of an If runs: a call checks them once the test is known."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import tvm
from tvm import relax, tirx

from ..graph.branch_errors import FITTING_BRANCH, BranchChecks
from ..graph.constants import sizes_of
from ..graph.graph import Branch, blocks_of, number_of_test, rebind
from ..graph.sizes import Condition, names_in
from .facts import SizeFacts

PACKED = "relax.call_pure_packed"


def numbered_test(test: relax.Expr, number: int) -> relax.Call:
    """Return the test of an If, with a number by which `SizeFacts.in_branch` knows its branches."""
    return _call(test, tirx.const(number, "int64"))


def with_branch_checks(mod: tvm.IRModule, facts: SizeFacts) -> tvm.IRModule:
    """Return the module with a check of sizes where the test of an If is known, and no numbers of tests.

    Conditions of an If that is no longer in the module become conditions of every call.

    Before: `t = R.call_pure_packed("tvmconv.fitting_branch", test, 0)`, `if t: … else: …`.
    After: `t = R.call_pure_packed("tvmconv.fitting_branch", test, R.shape([n]), R.str("… n == 2 …"))`.
    """
    sizes: dict[str, tirx.Expr] = {}
    for parameter in mod["main"].params:
        sizes.update((var.name, var) for var in sizes_of(parameter.ty) or () if isinstance(var, tvm.ir.Var))
    sizes.update((name, tirx.const(value, "int64")) for name, value in facts.fixed.items())
    values: dict[relax.Var, relax.Expr] = {}
    checked: list[Branch] = []
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (number := number_of_test(value)) is not None:
                of_then, of_else = [(*block.branch, (number, holds)) for holds in (True, False)]
                checked += [of_then, of_else]
                conditions = facts.conditions_inside(of_then), facts.conditions_inside(of_else)
                values[var] = _checked(value.args[1], *conditions, sizes)
    facts.require_of_all_but(checked)
    return rebind(mod, values) if values else mod


def _checked(
    test: relax.Expr, of_then: Sequence[Condition], of_else: Sequence[Condition], sizes: dict[str, tirx.Expr]
) -> relax.Expr:
    """Return the test of an If with a check of its branches' conditions, or the test alone if they have none.

    `sizes` are the sizes of the inputs, by name.
    """
    if not (of_then or of_else):
        return test
    named = names_in((*of_then, *of_else))
    names = tuple(str(name) for name in sizes if name in named)  # long names are of a type of TVM's
    checks = msgspec.json.encode(BranchChecks(names, tuple(of_then), tuple(of_else))).decode()
    return _call(test, relax.ShapeExpr([sizes[name] for name in names]), tvm.ir.StringImm(checks))


def _call(test: relax.Expr, *arguments: relax.Expr) -> relax.Call:
    operands = [relax.ExternFunc(FITTING_BRANCH), test, *arguments]
    return relax.Call(tvm.ir.Op.get(PACKED), operands, ty_args=[test.ty])
