"""Checks of the indices that a model computes: a network also returns the one that is out of range, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..graph.graph import operator_name
from ..indices.errors import LARGEST
from ..indices.operator import NAME, size_of_column
from .context import Context


def with_index_checks(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with one more output; the module itself where no operator has a text, or checks are off.

    The output, (checks,) in int64, has for each operator with a text the largest number that `out_of_range` computes,
    from which `require_in_range` makes an error; the context gets the texts. Indices in the branches of an If are
    clamped and not checked.

    Before: `j = R.indices_in_range(i, R.shape([9]), "Gather (node 'y') …")`, and y is returned.
    After: `k = R.call_tir(out_of_range, (i,))`, `worst = R.max(k, axis=[0], keepdims=True)` too, and (y, worst).
    """
    if not context.check_indices:
        return mod
    checks = _Checks(mod)
    main = checks.visit_expr(mod["main"])
    if not checks.texts:
        return mod
    context.checks = tuple(checks.texts)
    mod = checks.builder_.get().clone()
    mod["main"] = main
    return relax.transform.DeadCodeElimination()(mod)


@mutator
class _Checks(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.texts: list[str] = []
        self._found: list[relax.Var] = []
        self._depth = 0

    def visit_if_(self, branches: relax.If) -> relax.Expr:
        self._depth += 1
        result = super().visit_if_(branches)
        self._depth -= 1
        return result

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        if operator_name(binding.value) != NAME or self._depth:
            return
        indices, sizes = binding.value.args
        if text := str(binding.value.attrs["text"]):
            found = self.builder_.emit_te(out_of_range, self.visit_expr(indices), list(sizes))
            self._found.append(self.builder_.emit_output(relax.op.max(found, axis=[0], keepdims=True)))
            self.texts.append(text)

    def visit_seq_expr_(self, body: relax.SeqExpr) -> relax.Expr:
        body = super().visit_seq_expr_(body)
        if self._depth or not self._found:
            return body
        outputs = self.lookup_binding(body.body) if isinstance(body.body, relax.Var) else body.body
        fields = list(outputs.fields) if isinstance(outputs, relax.Tuple) else [body.body]
        self.builder_._begin_dataflow_block()
        worst = self._found[0] if len(self._found) == 1 else self.builder_.emit(relax.op.concat(self._found, axis=0))
        result = self.builder_.emit_output(relax.Tuple([*fields, worst]))
        return relax.SeqExpr([*body.blocks, self.builder_._end_block()], result)


def out_of_range(indices: te.Tensor, sizes: Sequence[tirx.Expr]) -> te.Tensor:
    """Return the definition: -1 for an index in range, else twice the index, or -1 - 2 * index for a negative index.

    One more -1 follows the numbers of all indices, so that the result has an element if there are no indices. For an
    axis of 4: (3, 4, -4, -5) become (-1, 8, -1, 9, -1).
    """
    count = reduce(lambda a, b: a * b, indices.shape, tirx.const(1, "int64"))

    def number(k: tirx.Expr) -> tirx.Expr:
        at: list[tirx.Expr] = []
        left = k
        for size in reversed(indices.shape):
            at.insert(0, left % size)
            left = left // size
        index, size = indices(*at).astype("int64"), size_of_column(at, sizes).astype("int64")
        largest = tirx.const(LARGEST, "int64")
        distance = tirx.min(tirx.Select(index < 0, -1 - index, index), largest)
        is_negative = (index < 0).astype("int64")
        found = tirx.Select(distance < size, tirx.const(-1, "int64"), distance * 2 + is_negative)
        return tirx.if_then_else(k < count, found, tirx.const(-1, "int64"))

    return te.compute((count + 1,), number, name="numbers", tag=topi.tag.INJECTIVE)
