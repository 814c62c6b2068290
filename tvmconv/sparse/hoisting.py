"""What the statements of a thread have in common: places in memory, but for a constant, and tests of them.

Once unrolled they say so hundreds of times, in branches that no compiler looks across: here each is worked out once, in
front of them. Before: `if t // 8 < 60: shared[t % 30 + 960] = ...`. After: `where0 = t % 30`, `test0 = t // 8 < 60`,
`if test0: shared[where0 + 960] = ...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer


class Hoisting:
    """Rewrites statements of a thread; `bindings` are what has to stand in front of them."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.bindings: list[tirx.Bind] = []
        self._analyzer = analyzer
        self._variables: dict[tvm_ffi.StructuralKey, tirx.Var] = {}

    def rewrite(self, node: Any, k: tirx.Var | None = None) -> Any:
        """A statement or an expression, which may depend on k; one that has loops of its own stays as it is."""
        loops: list[tirx.For] = []
        tvm_ffi.structural_walk(node, (tirx.For, loops.append))
        if loops:
            return node

        def load(expr: TensorLoad) -> tirx.PrimExpr:
            return expr.source[(self._place(expr.indices[0], k),)]

        def store(stmt: tirx.BufferStore) -> tirx.Stmt:
            return tirx.BufferStore(stmt.buffer, stmt.value, [self._place(stmt.indices[0], k)])

        def branch(stmt: tirx.IfThenElse) -> tirx.Stmt:
            test = self._test(stmt.condition)
            return stmt.then_case if _is_true(test) else tirx.IfThenElse(test, stmt.then_case, stmt.else_case)

        def choice(call: tvm.ir.Call) -> tirx.PrimExpr:
            if not call.op.same_as(_IF_THEN_ELSE):
                return call
            test, then, otherwise = call.args
            test = self._test(test)
            return then if _is_true(test) else tirx.if_then_else(test, then, otherwise)

        return tvm_ffi.structural_map(
            node, [(TensorLoad, load), (tirx.BufferStore, store), (tirx.IfThenElse, branch), (tvm.ir.Call, choice)]
        )

    def _place(self, index: tirx.PrimExpr, k: tirx.Var | None) -> tirx.PrimExpr:
        """The index as a variable and a constant, and what k adds to it."""
        if k is not None:
            start, after = (self._analyzer.simplify(substitute(index, {k: at})) for at in (0, 1))
            slope = self._analyzer.simplify(after - start)
            return self._place(start, None) + k * slope if int(slope) else self._place(start, None)
        index, constant = self._analyzer.simplify(index), 0
        if isinstance(index, tirx.Add | tirx.Sub) and isinstance(index.b, tirx.IntImm):
            constant = int(index.b) if isinstance(index, tirx.Add) else -int(index.b)
            index = index.a
        if isinstance(index, tirx.IntImm):
            return index
        return self._variable("place", index) + constant if constant else self._variable("place", index)

    def _test(self, condition: tirx.PrimExpr) -> tirx.PrimExpr:
        condition = self._analyzer.simplify(condition)
        reads: list[TensorLoad] = []
        tvm_ffi.structural_walk(condition, (TensorLoad, reads.append))
        return condition if reads or isinstance(condition, tirx.IntImm) else self._variable("test", condition)

    def _variable(self, name: str, value: tirx.PrimExpr) -> tirx.PrimExpr:
        if isinstance(value, tirx.Var):
            return value
        key = tvm_ffi.StructuralKey(value)
        if key not in self._variables:
            variable = tirx.Var(f"{name}{len(self._variables)}", value.ty.dtype)
            self._variables[key] = variable
            self.bindings.append(tirx.Bind(variable, value))
        return self._variables[key]


def substitute(node: Any, values: Mapping[tirx.Var, int]) -> Any:
    """A statement or an expression with numbers for some variables."""
    constants = {var: tirx.IntImm(var.ty.dtype, value) for var, value in values.items()}
    return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda var: constants.get(var, var)))


_IF_THEN_ELSE = tirx.if_then_else(tirx.Var("test", "bool"), 0, 1).op


def _is_true(test: tirx.PrimExpr) -> bool:
    return isinstance(test, tirx.IntImm) and bool(test.value)
