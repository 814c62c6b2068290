"""Tests in kernels for GPUs, such as that of a pixel in the last tile: once before a loop, not in each iteration."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import conjuncts, substitute

from ..signatures import is_scheduled


def with_tests_before_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function with a loop's test before it, where the loop stores to an operand and repeats it.

    A compiler unrolls such a loop, reads ahead for the next iterations, and loads and stores vectors, which it does not
    do with a test in each iteration. TVM's own functions, which are not scheduled yet, stay as they are.

    Before: `for k in range(128): if p < pixels: output[k, p] = ...`, and with p a multiple of 4 and a plane of 3136
    pixels `for i in T.vectorized(4): if (p + i) // 3136 < batch: output[p + i] = ...`.
    After: `if p < pixels: for k in range(128): ...`, and `if p < batch * 3136: for i in T.vectorized(4): ...`.

    An unrolled loop with a different test in each iteration first reads the residual for all iterations, since a
    compiler reads nothing ahead of a test: see `_reading_first`.
    """
    if not is_scheduled(func):
        return func
    body = tvm_ffi.structural_map(func.body, [(kind, _without_quotient) for kind in (tirx.LT, tirx.LE)])
    known = Analyzer()

    def tested_once(loop: tirx.For) -> tirx.Stmt:
        # TVM expects what is stored elsewhere, such as in shared memory, in loops with nothing between them.
        if isinstance(test := loop.body, tirx.IfThenElse) and not test.else_case:
            if loop.kind == tirx.ForKind.UNROLLED:
                return _reading_first(loop, test, func.params, known)
            return _behind(test, loop) if loop.kind == tirx.ForKind.SERIAL else loop
        realize = loop.body
        if not isinstance(realize, SBlockRealize) or not isinstance(store := realize.block.body, tirx.BufferStore):
            return loop
        is_operand = any(store.buffer.same_as(param) for param in func.params)
        return _tested_once(loop, realize, known) if is_operand else loop

    def bind(loop: tirx.For) -> None:
        known.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    tvm_ffi.structural_walk(body, [(tirx.For, bind)])
    return func.with_body(tvm_ffi.structural_map(body, (tirx.For, tested_once)))


def _tested_once(loop: tirx.For, realize: SBlockRealize, known: Analyzer) -> tirx.Stmt:
    """Return a loop over a block with the block's test before it, if the test is the same in each iteration."""
    if _is_true(realize.predicate) or loop.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED):
        return loop
    tests = [_of_vector(known.simplify(test), loop, known) for test in conjuncts(realize.predicate)]
    if any(loop.loop_var in undefined_vars(test) for test in tests):
        return loop
    body = SBlockRealize(realize.iter_values, True, realize.block)
    inner = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return tirx.IfThenElse(tirx.all(*tests), inner, None)


def _behind(test: tirx.IfThenElse, loop: tirx.For) -> tirx.Stmt:
    """Return a loop over a test as a test around the loop, if the test is the same in each iteration."""
    if loop.loop_var in undefined_vars(test.condition):
        return loop
    inner = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, test.then_case, None, loop.annotations)
    return tirx.IfThenElse(test.condition, inner, None)


def _reading_first(loop: tirx.For, test: tirx.IfThenElse, params: Sequence[tirx.Var], known: Analyzer) -> tirx.Stmt:
    """Return an unrolled loop over tested stores of vectors, after one that reads their elements of the residual.

    The residual is an input with as many axes as the output. Its elements wait in registers, of which elements of four
    bytes would take too many; where a test fails, the residual's first elements are read instead, so that all reads are
    in flight at once.

    Before: `for t in T.unroll(8): if p + t < pixels: for i in T.vectorized(4): output[p + t, i] = ... + x[p + t, i]`.
    After: `for t in T.unroll(8): for i in T.vectorized(4): first[t, i] = x[p + t if p + t < pixels else 0, i]`, then
    `for t in T.unroll(8): if p + t < pixels: for i in T.vectorized(4): output[p + t, i] = ... + first[t, i]`.
    """
    vector = test.then_case
    realize = vector.body if isinstance(vector, tirx.For) else None
    if not isinstance(realize, SBlockRealize) or not isinstance(store := realize.block.body, tirx.BufferStore):
        return loop
    if not _is_true(realize.predicate) or realize.block.init is not None:  # a test for each lane, or a reduction
        return loop
    bound = {axis.var: value for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    store = substitute(store, bound)
    inputs = [each for each in params if not each.same_as(store.buffer) and _axes(each) == _axes(store.buffer)]
    loads: list[TensorLoad] = []

    def collect(load: TensorLoad) -> None:
        if any(load.source.same_as(each) for each in inputs):
            loads.append(load)

    tvm_ffi.structural_walk(store.value, [(TensorLoad, collect)])
    if not loads or loads[0].ty.dtype.itemsize > 2 or not all(_equal(each, loads[0]) for each in loads):
        return loop
    turn, lane = loop.loop_var, vector.loop_var
    begins = [substitute(each, {lane: 0}) for each in loads[0].indices]
    steps = [known.simplify(each - begin) for each, begin in zip(loads[0].indices, begins, strict=True)]
    if not all(_is_zero(each) or each.same_as(lane) for each in steps):
        return loop
    clamped = [tirx.Select(test.condition, begin, 0) + step for begin, step in zip(begins, steps, strict=True)]
    first = tirx.decl_buffer([loop.extent, vector.extent], loads[0].ty.dtype, "first", scope="local")
    value = tvm_ffi.structural_map(store.value, (TensorLoad, lambda each: first[turn, lane] if each in loads else each))

    def unrolled_loop(store: tirx.BufferStore, condition: tirx.PrimExpr | None) -> tirx.Stmt:
        body: tirx.Stmt = tirx.For(lane, vector.min, vector.extent, vector.kind, store)
        body = body if condition is None else tirx.IfThenElse(condition, body, None)
        return tirx.For(turn, loop.min, loop.extent, loop.kind, body)

    fresh = {each: tirx.Var(each.name, each.ty.dtype) for each in (turn, lane)}
    reading = substitute(
        unrolled_loop(tirx.BufferStore(first, loads[0].source[tuple(clamped)], [turn, lane]), None), fresh
    )
    storing = unrolled_loop(tirx.BufferStore(store.buffer, value, store.indices), test.condition)
    block = SBlock([], [], [], "first", tirx.SeqStmt([reading, storing]), alloc_buffers=[first])
    return SBlockRealize([], True, block)


def _axes(buffer: tvm.ir.Var) -> int:
    return len(buffer.ty.shape)


def _of_vector(test: tirx.PrimExpr, loop: tirx.For, known: Analyzer) -> tirx.PrimExpr:
    """Return the test of a vector's first element, where all lanes pass or fail together; else the test as it is."""
    lane, lanes = loop.loop_var, loop.extent
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(test, tirx.LT) or lane in undefined_vars(test.b):
        return test
    first = substitute(test.a, {lane: 0})
    is_contiguous = known.can_prove_equal(test.a, first + lane)
    whole = all(known.can_prove_equal(tirx.floormod(each, lanes), 0) for each in (first, test.b))
    return first < test.b if is_contiguous and whole else test


def _is_true(test: tirx.PrimExpr) -> bool:
    return isinstance(test, tirx.IntImm) and bool(test.value)


def _without_quotient(test: tirx.LT | tirx.LE) -> tirx.PrimExpr:
    """Return a bounds test of a quotient or a remainder as a test of the dividend."""
    if isinstance(test, tirx.LE) and isinstance(test.b, (tirx.FloorDiv, tirx.FloorMod)) and _is_zero(test.a):
        return tirx.const(True, "bool") if isinstance(test.b, tirx.FloorMod) else test.b.a >= 0
    if isinstance(test, tirx.LT) and isinstance(test.a, tirx.FloorDiv):
        return test.a.a < test.b * test.a.b
    if isinstance(test, tirx.LT) and isinstance(test.a, tirx.FloorMod) and _equal(test.a.b, test.b):
        return tirx.const(True, "bool")
    return test


def _is_zero(value: tirx.PrimExpr) -> bool:
    return isinstance(value, tirx.IntImm) and value.value == 0


def _equal(one: tirx.PrimExpr, other: tirx.PrimExpr) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))
