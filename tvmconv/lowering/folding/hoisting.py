"""Hoisting of expressions that the statements of a thread share: addresses, except for a constant offset, and tests.

Unrolled code repeats them hundreds of times, in branches that no compiler looks across: here each is computed once, in
front of the statements. Before: `if t // 8 < 60: shared[t % 30 + 960] = ...`. After: `test0 = t // 8 < 60`, `shared_0`
is the buffer that begins at `shared[t % 30]`, `if test0: shared_0[960] = ...`.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.substitution import substitute


class Hoisting:
    """Rewrites statements of a thread; `bindings` are the statements that have to precede them."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.bindings: list[tirx.Stmt] = []
        self._analyzer = analyzer
        self._tests: dict[tvm_ffi.StructuralKey, tirx.Var] = {}
        self._variables: dict[tuple[tirx.Buffer, tvm_ffi.StructuralKey], tirx.Buffer] = {}
        self._shifted_buffers: set[tirx.Buffer] = set()

    def rewrite(self, node: Any, k: tirx.Var | None = None) -> Any:
        """Rewrite a statement or an expression, which may depend on k."""

        def load(expr: TensorLoad) -> tirx.PrimExpr:
            buffer, index = self._split_index(expr.source, expr.indices[0], k)
            return buffer[(index,)]

        def store(stmt: tirx.BufferStore) -> tirx.Stmt:
            buffer, index = self._split_index(stmt.buffer, stmt.indices[0], k)
            return tirx.BufferStore(buffer, stmt.value, [index])

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

    def _split_index(
        self, buffer: tirx.Buffer, index: tirx.PrimExpr, k: tirx.Var | None
    ) -> tuple[tirx.Buffer, tirx.PrimExpr]:
        """Return a buffer that begins at the thread's offset, and the index in it: a constant plus a multiple of k."""
        if k is not None:
            start, after = (self._analyzer.simplify(substitute(index, {k: at})) for at in (0, 1))
            slope = int(self._analyzer.simplify(after - start))
            buffer, offset = self._split_index(buffer, start, None)
            return buffer, offset + k * slope if slope else offset
        index, constant = self._analyzer.simplify(index), 0
        if isinstance(index, tirx.Add | tirx.Sub) and isinstance(index.b, tirx.IntImm):
            constant = int(index.b) if isinstance(index, tirx.Add) else -int(index.b)
            index = index.a
        if isinstance(index, tirx.IntImm):
            return buffer, index
        return self._shifted_buffer(buffer, index), tirx.IntImm("int32", constant)

    def _shifted_buffer(self, buffer: tirx.Buffer, start: tirx.PrimExpr) -> tirx.Buffer:
        """Return the buffer that begins at element `start` of `buffer`."""
        if buffer in self._shifted_buffers:
            return buffer
        key = buffer, tvm_ffi.StructuralKey(start)
        if key not in self._variables:
            name = f"{buffer.name}_{len(self._variables)}"
            part = tirx.decl_buffer(buffer.shape, buffer.dtype, name, scope=buffer.scope())
            self._variables[key] = part
            self._shifted_buffers.add(part)
            self.bindings.append(tirx.DeclBuffer(part, data=tirx.address_of(buffer[(start,)])))
        return self._variables[key]

    def _test(self, condition: tirx.PrimExpr) -> tirx.PrimExpr:
        condition = self._analyzer.simplify(condition)
        reads: list[TensorLoad] = []
        tvm_ffi.structural_walk(condition, (TensorLoad, reads.append))
        if reads or isinstance(condition, tirx.IntImm | tirx.Var):
            return condition
        key = tvm_ffi.StructuralKey(condition)
        if key not in self._tests:
            test = tirx.Var(f"test{len(self._tests)}", "bool")
            self._tests[key] = test
            self.bindings.append(tirx.Bind(test, condition))
        return self._tests[key]


_IF_THEN_ELSE = tirx.if_then_else(tirx.Var("test", "bool"), 0, 1).op


def _is_true(test: tirx.PrimExpr) -> bool:
    return isinstance(test, tirx.IntImm) and bool(test.value)
