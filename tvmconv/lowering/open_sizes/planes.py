"""Functions for planes of open size: stores of schedules in whole tiles are cut off where the output ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute import with_open_sizes
from tvmconv.compute.annotations import MAX_COLUMNS, TO_THE_END
from tvmconv.compute.open_sizes import COLUMNS, ROWS, VARIABLES
from tvmconv.compute.substitution import conjuncts, evaluated, substitute
from tvmconv.problem import Problem

MAX_TILES = 2**20
"""The largest height or width of an output of open size: sizes of buffers in whole tiles then fit 32 bits."""


def within_output(func: tirx.PrimFunc, problem: Problem) -> tirx.PrimFunc:
    """Return a scheduled function that stores nothing beyond the planes of its output.

    Its loops run over the output's number of tiles, which `compute.open_sizes.in_tiles` has left open. A tile that
    reaches beyond the end is stored by separate loops, element by element.

    Before: `for t in range(tiles): for i in T.vectorized(8): output[t * 8 + i] = ...`.
    After: `for t in range((width + 7) // 8): if t * 8 + 7 < width: for i in T.vectorized(8): output[t * 8 + i] = ...`,
    and `else: for i in range(8): if t * 8 + i < width: output[t * 8 + i] = ...`.
    """
    if not problem.open_sizes:
        return func
    workload, rounded = with_open_sizes(problem), func.params[-1]
    shape, dtype = problem.operands_of(workload)["output"]
    max_columns = int(func.attrs.get(MAX_COLUMNS, MAX_TILES))
    counts = _tile_counts(rounded.ty.shape, shape, {workload.output_layout.spatial[1]: max_columns})
    if not counts:
        return func
    exact = tirx.decl_buffer(shape, dtype, rounded.name)
    ends = {axis: shape[axis] for axis in workload.output_layout.spatial}
    func = func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, partial(_to_the_end, workload.output_size[1]))))
    stores = _stores(func, rounded)

    def cut(loop: tirx.For) -> tirx.Stmt:
        if not any(loop.same_as(each) for each in stores):
            return loop
        inside, outside = _cut(loop, ends, func.params[:-1])
        return tirx.IfThenElse(inside, loop, outside)

    body = tvm_ffi.structural_map(func.body, (tirx.For, cut))
    body = substitute(body, {**counts, rounded: exact})
    return tirx.PrimFunc([*func.params[:-1], exact], body, func.ret_type, attrs=func.attrs)


def _to_the_end(columns: tirx.PrimExpr, loop: tirx.For) -> tirx.For:
    """Return a loop annotated with `TO_THE_END` whose last tile is moved back, so that it ends where the row ends.

    Before: `for t in range(tiles): ... output[t * 8 + i]`.
    After: `for t in range(tiles): ... output[max(min(t * 8, width - 8), 0) + i]`.
    """
    annotations = dict(loop.annotations)
    if (step := annotations.pop(TO_THE_END, None)) is None:
        return loop
    step, begin = int(step), tirx.Var("begin", "int32")

    def replaced(product: tirx.Mul) -> tirx.PrimExpr:
        is_begin = loop.loop_var.same_as(product.a) and isinstance(product.b, tirx.IntImm) and product.b.value == step
        return begin if is_begin else product

    body = tvm_ffi.structural_map(loop.body, (tirx.Mul, replaced))
    assert loop.loop_var not in undefined_vars(body), "a tile is read or written by its number alone"
    body = substitute(body, {begin: tirx.max(tirx.min(loop.loop_var * step, columns - step), 0)})
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)


def _stores(func: tirx.PrimFunc, output: tvm.ir.Var) -> list[tirx.For]:
    """Return the outermost loops around nothing but stores of an element of the output."""
    loops_found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        _, realize = _nest(loop)
        store = realize.block.body if isinstance(realize, SBlockRealize) else None
        if isinstance(store, tirx.BufferStore) and store.buffer.same_as(output):
            loops_found.append(loop)

    tvm_ffi.structural_walk(func.body, [(tirx.For, visit)])
    inner = [loop.body for loop in loops_found]
    return [loop for loop in loops_found if not any(loop.same_as(each) for each in inner)]


def _nest(stmt: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    """Return the loops of a nest, the outermost first, and the body of the innermost."""
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _cut(
    loop: tirx.For, ends: dict[int, tirx.PrimExpr], inputs: Sequence[tvm.ir.Var]
) -> tuple[tirx.PrimExpr, tirx.Stmt]:
    """Return the test that all elements which the loops store are inside, and loops that store only those inside."""
    loops, stmt = _nest(loop)
    block = stmt.block
    bound = {axis.var: value for axis, value in zip(block.iter_vars, stmt.iter_values, strict=True)}
    store = substitute(block.body, bound)
    last = {each.loop_var: each.min + each.extent - 1 for each in loops}
    inside = tirx.all(*(substitute(store.indices[axis], last) < end for axis, end in ends.items()))

    # The loops once more, with new variables
    fresh = {each.loop_var: tirx.Var(each.loop_var.name, each.loop_var.ty.dtype) for each in loops}
    store, predicate, inner = substitute(store, fresh), substitute(stmt.predicate, fresh), loops[-1]
    tests = [store.indices[axis] < end for axis, end in ends.items()]
    lane = fresh[inner.loop_var]
    predicates = conjuncts(predicate)
    if inner.kind == tirx.ForKind.VECTORIZED and any(lane in undefined_vars(test) for test in tests):
        # All elements are computed in a vector, then those inside the output are stored one by one.
        vector = tirx.decl_buffer([inner.extent], store.buffer.ty.dtype, "vector", scope="local")
        computed = tirx.BufferStore(vector, _within(store.value, ends, inputs), [lane])
        other = {lane: tirx.Var(lane.name, lane.ty.dtype)}
        substituted = [substitute(index, other) for index in store.indices]
        element = tirx.BufferStore(store.buffer, vector[other[lane]], substituted)
        tests += [each for each in predicates if lane in undefined_vars(each)]
        predicate = tirx.all(*(each for each in predicates if lane not in undefined_vars(each)), True)
        stored = tirx.IfThenElse(substitute(tirx.all(*tests), other), element, None)
        parts = [
            tirx.For(lane, inner.min, inner.extent, inner.kind, computed),
            tirx.For(other[lane], inner.min, inner.extent, tirx.ForKind.SERIAL, stored),
        ]
        body: tirx.Stmt = _opaque(predicate, tirx.SeqStmt(parts), [vector])
        loops.pop()
    else:
        body = _opaque(predicate, tirx.IfThenElse(tirx.all(*tests), store, None), [])
    for each in reversed(loops):
        body = tirx.For(fresh[each.loop_var], each.min, each.extent, each.kind, body)
    return inside, body


def _opaque(predicate: tirx.PrimExpr, body: tirx.Stmt, buffers: Sequence[tvm.ir.Var]) -> SBlockRealize:
    """Return a block that allocates buffers and runs statements if a condition holds."""
    return SBlockRealize([], predicate, SBlock([], [], [], "end", body, alloc_buffers=buffers))


def _within(value: tirx.PrimExpr, ends: dict[int, tirx.PrimExpr], inputs: Sequence[tvm.ir.Var]) -> tirx.PrimExpr:
    """Return an expression whose loads of inputs with planes (the residual) are clamped to the ends of the planes."""
    of_planes = [each for each in inputs if len(each.ty.shape) > max(ends)]

    def nearest(load: TensorLoad) -> tirx.PrimExpr:
        if not any(load.source.same_as(each) for each in of_planes):
            return load
        indices = [tirx.min(each, ends[axis] - 1) if axis in ends else each for axis, each in enumerate(load.indices)]
        return load.source[tuple(indices)]

    return tvm_ffi.structural_map(value, (TensorLoad, nearest))


def _tile_counts(
    rounded: Sequence[tirx.PrimExpr], exact: Sequence[tirx.PrimExpr], limit: Mapping[int, int]
) -> dict[tvm.ir.Var, tirx.PrimExpr]:
    """Return the value of each variable that stands for a number of tiles in a shape in whole tiles.

    An axis has at most `limit[axis]` elements, or `MAX_TILES` where it is not in `limit`.
    """
    counts = {}
    for axis, (whole, size) in enumerate(zip(rounded, exact, strict=True)):
        for var in set(undefined_vars(whole)) - {*VARIABLES.values(), ROWS, COLUMNS}:
            step = evaluated(whole, {var: 1})
            count = tirx.truncdiv(size + (step - 1), tirx.const(step, "int32"))
            # Bounds that TVM sees: it would make much code for a number of tiles below zero.
            counts[var] = tirx.min(tirx.max(count, 1), -(-limit.get(axis, MAX_TILES) // step))
    return counts
