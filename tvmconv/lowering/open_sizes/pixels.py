"""Pixels of planes of open size: in tiles, the last of which ends where the plane ends, and in vectors along rows."""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute import with_open_sizes
from tvmconv.compute.open_sizes import COLUMNS, ROWS, VARIABLES
from tvmconv.compute.substitution import substitute
from tvmconv.problem import Problem
from tvmconv.problem.workload import MAX_ELEMENTS

from ..workspace import statements_of


def with_open_planes(mod: tvm.IRModule, problem: Problem) -> tirx.PrimFunc:
    """Return the only function of a scheduled module, or all joined, each for planes of at least its tile's pixels.

    In these functions the tiles of a plane are rows of tensors. Some pixels of the last tile may be in the tile before,
    too: they are computed twice, with the same results. All functions share the first stage, the weight in blocks.

    Before: `def main(x, w, output): A; for t in range(tiles): output[n, k, t, i] = ... x[n, c, t, i]`, with tiles of 32
    pixels, and `def smaller(x, w, output)` alike, with tiles of one.
    After: `A; if plane >= 32: for t in range((plane + 31) // 32): start = min(t * 32, plane - 32); output[n, k, start +
    i] = ... x[n, c, start + i]`, and `else:` the same with tiles of one.
    """
    if len(mod.functions) == 1:
        return mod["main"]
    functions = sorted(mod.functions.values(), key=_pixels, reverse=True)
    first, operands = functions[0], with_open_sizes(problem).operands
    exact = {
        old: tirx.decl_buffer(shape, dtype, old.name)
        for old, (shape, dtype) in zip(first.params, operands.values(), strict=True)
    }
    plane = prod(with_open_sizes(problem).output_size)
    root = first.body.block
    packing, packed = statements_of(root)[0], root.alloc_buffers[0]
    joined: tirx.Stmt | None = None
    buffers = [packed]
    for func in reversed(functions):
        packed_of_function, *others = func.body.block.alloc_buffers
        buffers += others
        same = dict(zip(func.params, exact.values(), strict=True))
        body = _with_exact_operands(statements_of(func.body.block)[1], same, plane, _pixels(func))
        body = substitute(body, {packed_of_function: packed})
        joined = body if joined is None else tirx.IfThenElse(plane >= _pixels(func), body, joined)
    block = SBlock(
        [], [], [], root.name_hint, tirx.SeqStmt([substitute(packing, exact), joined]), alloc_buffers=buffers
    )
    return tirx.PrimFunc(list(exact.values()), SBlockRealize([], True, block), first.ret_type, attrs=first.attrs)


def _pixels(func: tirx.PrimFunc) -> int:
    """Return the number of pixels of a tile, a row of the output."""
    return int(func.params[-1].ty.shape[-1])


def _with_exact_operands(
    body: tirx.Stmt, exact: dict[tvm.ir.Var, tvm.ir.Var], plane: tirx.PrimExpr, pixels: int
) -> tirx.Stmt:
    """Return a statement that reads and stores tiles in the planes of exact operands; planes have a tile or more."""
    tiles = {
        var: tirx.min(tirx.max(tirx.truncdiv(plane + (pixels - 1), pixels), 1), MAX_ELEMENTS // pixels)
        for operand in exact
        for size in operand.ty.shape
        for var in set(undefined_vars(size)) - {*VARIABLES.values(), ROWS, COLUMNS}
    }

    def pixel_index(operand: tvm.ir.Var, indices: list[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
        *outer, tile, pixel = indices
        start = tile * pixels if pixels == 1 else tirx.min(tile * pixels, plane - pixels)
        return [*outer, tirx.const(0, "int32"), start + pixel]

    def is_tiled(operand: tvm.ir.Var) -> bool:
        return operand in exact and any(not tiles.keys().isdisjoint(undefined_vars(size)) for size in operand.ty.shape)

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if not is_tiled(store.buffer):
            return store
        return tirx.BufferStore(exact[store.buffer], store.value, pixel_index(store.buffer, list(store.indices)))

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        return (
            exact[load.source][tuple(pixel_index(load.source, list(load.indices)))] if is_tiled(load.source) else load
        )

    body = tvm_ffi.structural_map(body, [(tirx.BufferStore, stored), (TensorLoad, loaded)])
    return substitute(body, {**tiles, **exact})


def with_vectors_in_rows(func: tirx.PrimFunc, problem: Problem) -> tirx.PrimFunc:
    """Return a scheduled function for a GPU that stores vectors only where rows of an array are whole vectors.

    In other arrays a vector may begin anywhere in memory, and end in the next plane: it is stored element by element.

    Before: `for i in T.vectorized(4): output[(p + i) // plane, k, 0, (p + i) % plane] = ...`, with p a multiple of 4.
    After: `if plane % 4 == 0: for i in T.vectorized(4): output[p // plane, k, 0, p % plane + i] = ...`, and
    `else: for i in T.unroll(4): output[(p + i) // plane, k, 0, (p + i) % plane] = ...`.
    """
    return tvm_ffi.structural_map(func, (tirx.For, _split)) if problem.has_open_planes else func


def _split(loop: tirx.For) -> tirx.Stmt:
    realize = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, SBlockRealize):
        return loop
    bound = {axis.var: value for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    store = substitute(realize.block.body, bound)
    if not isinstance(store, tirx.BufferStore) or not undefined_vars(row := store.buffer.ty.shape[-1]):
        return loop
    lane = loop.loop_var
    fresh_lane = tirx.Var(lane.name, lane.ty.dtype)

    def first(division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        """Return a quotient or a remainder for all lanes from that of the first: no row ends inside the vector."""
        if lane not in undefined_vars(division.a):
            return division
        start = type(division)(substitute(division.a, {lane: 0}), division.b)
        return start if isinstance(division, tirx.FloorDiv) else start + lane

    vector = tvm_ffi.structural_map(store, [(kind, first) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    whole = _loop(loop, fresh_lane, vector, substitute(realize.predicate, {lane: 0}), tirx.ForKind.VECTORIZED)
    parts = _loop(loop, lane, store, realize.predicate, tirx.ForKind.UNROLLED)
    return tirx.IfThenElse(tirx.floormod(row, loop.extent).equal(0), whole, parts)


def _loop(
    like: tirx.For, lane: tirx.Var, store: tirx.BufferStore, predicate: tirx.PrimExpr, kind: tirx.ForKind
) -> tirx.For:
    """Return a loop over the lanes of `like`, with the variable `lane`, that stores if `predicate` holds."""
    store, predicate = (substitute(each, {like.loop_var: lane}) for each in (store, predicate))
    body = SBlockRealize([], predicate, SBlock([], [], [], "vector", store))
    return tirx.For(lane, like.min, like.extent, kind, body)
