"""Rewrites before TVM fuses operators, by which it fuses more: of concatenations, permutations and branches."""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmconv.compute.substitution import substitute
from tvmconv.lowering.signatures import itemsize

from ..between.gpu.plan import VECTOR_BYTES
from ..graph.constants import sizes_of
from ..graph.graph import Block, blocks_of, calls, concat_of, free_variables, has_branches, rebind
from .convolutions.layouts import BY_ELEMENT

MAX_PARTS = 64
"""The most parts of a flattened concatenation: each takes time when a network is built."""


def flatten_concatenations(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with nested concatenations flattened: the outer one joins the parts of the inner one directly.

    This needs an inner concatenation whose other readers compute element by element. Where these are a single chain, as
    in DenseNet, TVM fuses the inner concatenation into it, and never stores the inner tensor. A concatenation stays as
    it is if a part of it does not consist of whole vectors.

    Before: `c = R.concat((a, b), axis=3)`, `y = R.nn.relu(c)`, `d = R.concat((c, y), axis=3)`.
    After: `c = R.concat((a, b), axis=3)`, `y = R.nn.relu(c)`, `d = R.concat((a, b, y), axis=3)`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        parts: dict[relax.Var, list[relax.Var]] = {}
        for var, value in block.values.items():
            axis, fields = concat_of(value)
            if axis is None:
                continue
            inner = [
                parts.get(each, [each]) if concat_of(block.values.get(each))[0] == axis else [each] for each in fields
            ]
            found = [part for each in inner for part in each]
            if not all(_is_in_vectors(part, axis) for part in found):
                continue
            if len(found) > MAX_PARTS:
                found = fields
            if len(found) > len(fields):
                values[var] = relax.op.concat(found, axis)
            if _is_read_by_element(var, axis, block):
                parts[var] = found
    return rebind(mod, values)


def _is_in_vectors(part: relax.Var, axis: int) -> bool:
    """Return whether the axes after the concat axis, or the last axis if there are none, fill whole vectors."""
    sizes = sizes_of(part.ty)
    rows = [] if sizes is None else sizes[axis + 1 :] or sizes[-1:]
    known = [size for size in rows if isinstance(size, int)]
    return 0 < len(rows) == len(known) and prod(known) * itemsize(part.ty.dtype) % VECTOR_BYTES == 0


def _is_read_by_element(var: relax.Var, axis: int, block: Block) -> bool:
    """Return whether a variable's readers are concatenations along an axis, or compute element by element."""
    readers = [block.values[reader] for reader in block.readers(var)]
    return block.is_inner(var) and all(concat_of(each)[0] == axis or calls(each, *BY_ELEMENT) for each in readers)


def outline_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with each branch of "main" as a function, if the branch's operands define all sizes in it.

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


def permute_slices(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a permutation repeated for each slice of its result, if slices alone read the result.

    TVM fuses a permutation with its reader if there is only one: then a slice reads the original tensor directly.

    Before: `p = R.permute_dims(x, [2, 0, 1, 3])`, `q = R.strided_slice(p, [0], [0], [1])`,
    `k = R.strided_slice(p, [0], [1], [2])`.
    After: `q = R.strided_slice(R.permute_dims(x, [2, 0, 1, 3]), [0], [0], [1])`, and k in the same way.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            readers = block.readers(var)
            if not calls(value, "permute_dims") or len(readers) < 2 or not block.is_inner(var):
                continue
            if all(calls(block.values[reader], "strided_slice") for reader in readers):
                for reader in readers:  # each gets a new call: one call would be bound to one variable
                    permutation = relax.Call(value.op, value.args, value.attrs)
                    values[reader] = substitute(block.values[reader], {var: permutation})
    return rebind(mod, values)
