"""Vectors of pixels in rows of a length that is known only when a kernel runs, of which not all are whole vectors."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import substitute
from tvmconv.problem import Problem


def with_vectors_in_rows(func: tirx.PrimFunc, problem: Problem) -> tirx.PrimFunc:
    """Return a scheduled function for a GPU that stores vectors where the rows of an array are whole vectors.

    In others a vector may begin anywhere in memory, and end in the next plane: it is stored element by element.

    Before: `for i in T.vectorized(4): output[(p + i) // plane, k, 0, (p + i) % plane] = ...`, with p a multiple of 4.
    After: `if plane % 4 == 0: for i in T.vectorized(4): output[p // plane, k, 0, p % plane + i] = ...`, and
    `else: for i in T.unroll(4): output[(p + i) // plane, k, 0, (p + i) % plane] = ...`.
    """
    return tvm_ffi.structural_map(func, (tirx.For, _split)) if problem.has_open_planes else func


def _split(loop: tirx.For) -> tirx.Stmt:
    realize = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, SBlockRealize):
        return loop
    bound = {axis.var: place for axis, place in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    store = substitute(realize.block.body, bound)
    if not isinstance(store, tirx.BufferStore) or not undefined_vars(row := store.buffer.ty.shape[-1]):
        return loop
    lane = loop.loop_var
    together = tirx.Var(lane.name, lane.ty.dtype)

    def first(division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        """Return a quotient or a rest of a vector's elements by that of the first: none ends between them."""
        if lane not in undefined_vars(division.a):
            return division
        start = type(division)(substitute(division.a, {lane: 0}), division.b)
        return start if isinstance(division, tirx.FloorDiv) else start + lane

    vector = tvm_ffi.structural_map(store, [(kind, first) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    whole = _loop(loop, together, vector, substitute(realize.predicate, {lane: 0}), tirx.ForKind.VECTORIZED)
    parts = _loop(loop, lane, store, realize.predicate, tirx.ForKind.UNROLLED)
    return tirx.IfThenElse(tirx.floormod(row, loop.extent).equal(0), whole, parts)


def _loop(
    like: tirx.For, lane: tirx.Var, store: tirx.BufferStore, predicate: tirx.PrimExpr, kind: tirx.ForKind
) -> tirx.For:
    """Return a loop over the same lanes, with a variable of its own, that stores on a condition."""
    store, predicate = (substitute(each, {like.loop_var: lane}) for each in (store, predicate))
    body = SBlockRealize([], predicate, SBlock([], [], [], "vector", store))
    return tirx.For(lane, like.min, like.extent, kind, body)
