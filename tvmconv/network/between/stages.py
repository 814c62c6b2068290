"""The loop nests of TVM's fused functions as stages: reductions, and maps that read their results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.s_tir.stmt import SBlock
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import CHOICE, factors, substitute

from .reductions import JOINS

Join = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True)
class Stage:
    """A loop nest that stores one element of each of its targets, all of one shape, in each turn of its outer axes."""

    targets: list[Any]
    """The buffers that are stored to."""
    indices: list[Expr]
    """The indices of the element in each of the targets."""
    values: list[Expr]
    """The value for each target; of a reduction, what is joined to it in each turn of the reduced axes."""
    outer: dict[Var, Expr]
    """The axes of the targets, with their extents; none has the extent 1."""
    reduced: dict[Var, Expr]
    """The axes that are reduced, with their extents."""
    joins: list[Join]
    """The function with which a reduction joins two values, for each target."""
    inits: list[Expr]
    """The neutral element that a reduction begins with, for each target."""

    @property
    def is_reduction(self) -> bool:
        return bool(self.joins)


def stages_of(func: tirx.PrimFunc) -> list[Stage] | None:
    """Return the stages of a function, with maps computed inside their readers; None if it has loops of other kinds.

    All but the last are reductions.
    """
    sch = Schedule(with_simple_indices(func))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if is_map(sch, block) and sch.get_consumers(block):
            with suppress(ScheduleError):  # such as for a block that is read at indices which TVM cannot analyze
                sch.compute_inline(block)
    found = []
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if not _has_loops_of_axes(sch, block) or (stage := stage_of(sch.get(block))) is None:
            return None
        found.append(stage)
    return found if found and all(stage.is_reduction for stage in found[:-1]) else None


def _has_loops_of_axes(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block has a loop for each axis, or no loops and only axes of one element."""
    loops, axes = sch.get_loops(block), sch.get(block).iter_vars
    return len(loops) == len(axes) or (not loops and all(_is_one(axis.dom.extent) for axis in axes))


def with_simple_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with the indices and conditions of its blocks simplified by their axes' sizes.

    Once another block computes a block inside of it, at other indices, TVM may no longer be able to simplify these.
    """
    return tvm_ffi.structural_map(func, (SBlock, _simplified))


def _simplified(block: SBlock) -> SBlock:
    """Return a block that stores one element with its indices and conditions simplified by its axes' sizes."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.init is not None:
        return block
    axes, analyzer = {axis.var: axis.dom.extent for axis in block.iter_vars}, Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def simplified(expr: Expr) -> Expr:
        return _simple(expr, axes, analyzer)

    body = tirx.BufferStore(store.buffer, simplified(store.value), list(map(simplified, store.indices)))
    reads, writes = block.reads, block.writes
    return SBlock(block.iter_vars, reads, writes, block.name_hint, body, annotations=block.annotations)


def is_contraction(stage: Stage) -> bool:
    """Return whether a stage sums products of two operands, as a convolution or a product of matrices does."""

    def sources(value: Expr) -> list[Any]:
        loads = [load for load, _ in loads_in(value)]
        return [load.source for load in loads if variables_in(load.indices) & set(stage.reduced)]

    def is_product(value: Any) -> bool:
        while isinstance(value, tirx.Cast):
            value = value.value
        if not isinstance(value, tirx.Mul):
            return False
        first, second = sources(value.a), sources(value.b)
        return bool(first and second) and not any(one.same_as(other) for one in first for other in second)

    return stage.is_reduction and any(map(is_product, stage.values))


def flat_index(buffer: Any, indices: Iterable[Expr]) -> Expr:
    """Return the offset of an element in a buffer's memory, in elements, by its indices."""
    offset: Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, buffer.ty.shape, strict=True):
        offset = _with_index(offset, extent, index)
    return offset


def _with_index(offset: Expr, extent: Expr, index: Expr) -> Expr:
    """Return an offset continued by an index, where quotient and remainder of one number become that number again."""
    if isinstance(index, tirx.FloorMod) and tvm_ffi.structural_equal(index.b, extent):
        quotient, terms = tirx.FloorDiv(index.a, index.b), _addends(offset)
        others = [term for term in terms if not tvm_ffi.structural_equal(term, quotient)]
        if len(others) == len(terms) - 1:
            return reduce(operator.add, (term * extent for term in others), index.a)
    return offset * extent + index


def _addends(value: Expr) -> list[Expr]:
    return [*_addends(value.a), *_addends(value.b)] if isinstance(value, tirx.Add) else [value]


def stride(load: TensorLoad, axis: Var) -> Expr:
    """Return the distance in memory, in elements, from one index on an axis to the next."""
    return step_of(flat_index(load.source, load.indices), axis, Analyzer())


def step_of(offset: Expr, axis: Var, analyzer: Analyzer) -> Expr:
    """Return the difference of an offset from one index on an axis to the next; no constant where that varies."""
    return analyzer.simplify(substitute(offset, {axis: axis + 1}) - offset)


def is_contiguous_along(load: TensorLoad, axis: Var) -> bool:
    """Return whether elements at neighbouring indices on an axis are neighbours in memory."""
    return _is_one(stride(load, axis))


def loads_stored_offset(load: TensorLoad, stage: Stage) -> bool:
    """Return whether a load reads the offset, in elements, to which the stage stores."""
    analyzer = Analyzer()
    for var, extent in stage.outer.items():
        analyzer.bind(var, Range(0, extent))
    stored = flat_index(stage.targets[0], stage.indices)
    return bool(analyzer.can_prove_equal(flat_index(load.source, load.indices), stored))


def variables_in(expressions: Iterable[Expr]) -> set[Var]:
    """Return the variables in some expressions."""
    return {var for each in expressions for var in undefined_vars(each)}


def is_map(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether each element that a block writes is an expression of elements that others have written."""
    value = sch.get(block)
    is_parallel = all(axis.iter_type == tirx.IterVar.DataPar for axis in value.iter_vars)
    return is_parallel and _has_loops_of_axes(sch, block) and isinstance(value.body, tirx.BufferStore)


def loads_in(expr: Any, conditions: tuple[Expr, ...] = ()) -> Iterator[tuple[TensorLoad, tuple[Expr, ...]]]:
    """Yield each load in an expression with the conditions on which it is made, without the loads in indices."""
    if isinstance(expr, TensorLoad):
        yield expr, conditions
    elif isinstance(expr, tvm.ir.Call) and expr.op.same_as(CHOICE):
        test, first, second = expr.args
        yield from loads_in(test, conditions)
        yield from loads_in(first, (*conditions, test))
        yield from loads_in(second, (*conditions, tirx.Not(test)))
    else:
        for part in parts_of(expr):
            yield from loads_in(part, conditions)


def parts_of(expr: Any) -> list[Expr]:
    """Return the expressions that an expression is directly made of."""
    if isinstance(expr, tvm.ir.Call):
        return [each for each in expr.args if isinstance(each, Expr)]
    names = ("a", "b", "condition", "true_value", "false_value", "value", "body")
    parts = [getattr(expr, name) for name in names if hasattr(expr, name)]
    return [part for part in parts if isinstance(part, Expr)]


def with_loads(expr: Expr, replace: Callable[[TensorLoad], Expr]) -> Expr:
    """Return an expression with each load replaced."""
    return tvm_ffi.structural_map(expr, (TensorLoad, replace))


def stage_of(block: SBlock) -> Stage | None:
    """Return a block, whose variables are its axes, as a stage; None if it is neither a map nor a reduction."""
    binds, stores = _statements(block.body)
    if stores is None or not stores:
        return None
    axes = {axis.var: axis.dom.extent for axis in block.iter_vars}
    zero = {var: tirx.const(0, var.ty.dtype) for var, extent in axes.items() if _is_one(extent)}
    analyzer = Analyzer()
    for var, extent in axes.items():
        analyzer.bind(var, Range(0, extent))

    def simplified(expr: Expr) -> Expr:
        squared = tvm_ffi.structural_map(substitute(expr, zero), (tvm.ir.Call, _without_squares))
        return _simple(squared, axes, analyzer)

    values = [simplified(_without(binds, store.value)) for store in stores]
    indices = [[simplified(index) for index in store.indices] for store in stores]
    if any(not tvm_ffi.structural_equal(one, other) for one, other in pairwise(indices)):
        return None
    kinds = {axis.var: axis.iter_type for axis in block.iter_vars if axis.var not in zero}
    outer = {var: axes[var] for var, kind in kinds.items() if kind == tirx.IterVar.DataPar}
    reduced = {var: axes[var] for var, kind in kinds.items() if kind == tirx.IterVar.CommReduce}
    if len(outer) + len(reduced) != len(kinds):
        return None
    targets = [store.buffer for store in stores]
    if block.init is None:
        return None if reduced else Stage(targets, indices[0], values, outer, {}, [], [])
    _, begins = _statements(block.init)
    if any(type(value) not in JOINS for value in values) or begins is None:
        return None
    for target, value in zip(targets, values, strict=True):
        if not isinstance(value.a, TensorLoad) or not value.a.source.same_as(target):
            return None
    joins = [JOINS[type(value)] for value in values]
    inits = {begin.buffer: begin.value for begin in begins}
    terms = [value.b for value in values]
    if any(load.source.same_as(target) for term in terms for load, _ in loads_in(term) for target in targets):
        return None
    return Stage(targets, indices[0], terms, outer, reduced, joins, [inits[target] for target in targets])


def _without_squares(call: tvm.ir.Call) -> Expr:
    """Return x * x for a power of 2, which is slow as a call on a GPU; return any other call as it is."""
    is_square = (
        str(call.op.name).endswith(".pow") and isinstance(call.args[1], tirx.FloatImm) and call.args[1].value == 2
    )
    return call.args[0] * call.args[0] if is_square else call


def _simple(expr: Expr, axes: Mapping[Var, Expr], analyzer: Analyzer) -> Expr:
    """Return an expression simplified by the ranges of axes, also where these have open sizes."""
    before, expr = None, analyzer.simplify(expr)
    while before is None or not tvm_ffi.structural_equal(before, expr):
        before, expr = expr, analyzer.simplify(_without_open_quotients(expr, axes))
    return expr


def _without_open_quotients(expr: Expr, axes: Mapping[Var, Expr]) -> Expr:
    """Return an expression without quotients and remainders by open sizes, where the ranges of axes determine them.

    TVM simplifies only quotients by constants. Before: `(c * h + y) // h`, with y an axis of the extent h. After: `c`.
    """

    def is_below(value: Expr, size: Expr) -> bool:
        if isinstance(value, tirx.FloorDiv):
            return is_below(value.a, size * value.b)
        extent = value.b if isinstance(value, tirx.FloorMod) else axes.get(value) if isinstance(value, Var) else None
        return extent is not None and Analyzer().can_prove_equal(extent, size)

    def known(division: tirx.FloorDiv | tirx.FloorMod) -> Expr:
        whole, rest = [], []
        for term in _addends(division.a):
            others = factors(term)
            index = next((i for i, each in enumerate(others) if tvm_ffi.structural_equal(each, division.b)), None)
            if index is None:
                rest.append(term)
            else:
                whole.append(
                    reduce(operator.mul, [*others[:index], *others[index + 1 :]], tirx.const(1, term.ty.dtype))
                )
        if isinstance(division.b, tirx.IntImm) or len(rest) > 1 or not all(is_below(term, division.b) for term in rest):
            return division
        terms = whole if isinstance(division, tirx.FloorDiv) else rest
        return reduce(operator.add, terms, tirx.const(0, division.ty.dtype))

    return tvm_ffi.structural_map(expr, [(kind, known) for kind in (tirx.FloorDiv, tirx.FloorMod)])


def _statements(body: tirx.Stmt) -> tuple[dict[Var, Expr], list[tirx.BufferStore] | None]:
    """Return the variables and stores that a block consists of; None for the stores if there is anything else."""
    steps = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(step, (tirx.Bind, tirx.BufferStore)) for step in steps):
        return {}, None
    binds = {step.var: step.value for step in steps if isinstance(step, tirx.Bind)}
    return binds, [step for step in steps if isinstance(step, tirx.BufferStore)]


def _without(binds: dict[Var, Expr], value: Expr) -> Expr:
    """Return a value with variables replaced by their values, in which there may be other variables."""
    return reduce(lambda found, var: substitute(found, {var: binds[var]}), reversed(binds), value)


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
