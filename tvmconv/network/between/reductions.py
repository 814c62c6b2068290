"""Windows that slide along rows on a CPU, with vectors.

LLVM does not vectorize rows that have fewer outputs than a vector has lanes, and computes the last outputs of longer
rows one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.s_tir.stmt import SBlock

from tvmconv.compute.substitution import CHOICE, conjuncts

from .vector_code import Reduction, VectorCode, variables

LANES = "tvmconv.lanes"
"""The annotation of a block to compute with vectors; its value is the number of lanes of the longest vectors."""

JOINS: dict[type, Callable[[Expr, Expr], Expr]] = {tirx.Add: operator.add, tirx.Max: tirx.Max, tirx.Min: tirx.Min}
"""The function with which a reduction joins two values, by the node of its update."""


class Update(NamedTuple):
    """An update of a reduction: `y[...] = join(y[...], load if condition else fill)`."""

    join: Callable[[Expr, Expr], Expr]
    load: TensorLoad
    condition: Expr
    fill: Expr


def mark_for_vectors(sch: Schedule, block: SBlockRV, lanes: int) -> None:
    """Put a block around a reduction of windows that can use vectors, which `with_vectors` fills after scheduling.

    Padding is not stored any more: whether a window reads padding is a constant, or the same for a whole row.

    Before: `for n, c, h, w: pad`, and `for n, c, h, w, r, s: block`.
    After: `for n, c, h: marked`, in which is `for w, r, s: block`.
    """
    trial = sch.copy()
    if (marked := _mark(trial, block, lanes)) is not None and _statements(trial.get(marked)):
        _mark(sch, block, lanes)


def with_vectors(block: SBlock) -> SBlock:
    """Return a marked block with vectors instead of its loops; return any other block unchanged.

    Before, with a window of 3x3 and a stride of 2: `for w in range(13): for r, s: y[h, w] = max(y[h, w], x[...])`.
    After: `a = max(x[2 * h, 0:16], x[2 * h + 1, 0:16], x[2 * h + 2, 0:16])` and `b`, the maximum of columns 11 to 26,
    then `y[h, 0:8] = max((a[0], a[2], ...), (a[1], a[3], ...), (a[2], a[4], ..., b[5]))`, and so on for `y[h, 5:13]`.
    """
    if LANES not in block.annotations:
        return block
    body = tirx.SeqStmt(_statements(block))
    return SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body, annotations=block.annotations)


def _mark(sch: Schedule, block: SBlockRV, lanes: int) -> SBlockRV | None:
    """Put a block around a reduction of sliding windows of constant sizes and return it; return None for others."""
    loops, axes = sch.get_loops(block), sch.get(block).iter_vars
    first = sum(axis.iter_type == tirx.IterVar.DataPar for axis in axes)
    if len(loops) != len(axes) or first in (0, len(axes)):
        return None
    if not all(_is_constant(axis.dom.extent) for axis in axes[first - 1 :]):
        return None
    for producer in sch.get_producers(block):
        if len(sch.get_consumers(producer)) == 1 and _is_padding(sch.get(producer)):
            sch.compute_inline(producer)
    if (update := _update(sch.get(block))) is None or not all(map(_is_constant, update.load.source.ty.shape[1:])):
        return None
    if str(update.load.source.ty.dtype) == "bfloat16":  # TVM computes it in float32, except in vectors and variables
        return None
    column = variables(update.load.indices[-1])
    if (
        first == 1
        or int(axes[first - 1].dom.extent) == 1
        or axes[first - 1].var not in column
        or not column & {axis.var for axis in axes[first:]}
    ):
        return None
    marked = sch.blockize(loops[first - 1])
    sch.annotate(marked, LANES, lanes)
    return marked


def _statements(marked: SBlock) -> list[tirx.Stmt]:
    """Return the statements that compute a marked block with vectors; none where vectors do not fit."""
    inside: list[SBlock] = []
    tvm_ffi.structural_walk(marked.body, [(SBlock, inside.append)])
    (block,) = inside
    update = _update(block)
    assert update is not None
    sizes = {axis.var: int(axis.dom.extent) for axis in block.iter_vars}
    outputs = [axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.DataPar]
    reduction = Reduction(
        target=block.body,
        join=update.join,
        load=update.load,
        conditions=[each for each in conjuncts(update.condition) if not _is_constant(each)],
        fill=update.fill,
        outputs={var: sizes.pop(var) for var in outputs},
        reduced=sizes,
        outer={axis.var: axis.dom for axis in marked.iter_vars},
    )
    return VectorCode(reduction).row(int(marked.annotations[LANES]))


def _update(block: SBlock) -> Update | None:
    """Return the update of a block that joins its output with elements it loads unchanged; None for any other block."""
    value: Any = getattr(block.body, "value", None)
    if type(value) not in JOINS or not isinstance(value.a, TensorLoad):
        return None
    condition, load, fill = tirx.const(True), value.b, None
    if isinstance(load, tvm.ir.Call) and load.op.same_as(CHOICE):
        condition, load, fill = load.args
    if not isinstance(load, TensorLoad) or not value.a.source.same_as(block.body.buffer):
        return None
    return Update(JOINS[type(value)], load, condition, fill)


def _is_padding(block: SBlock) -> bool:
    """Return whether a block copies elements into a larger array with a constant around them."""
    value = getattr(block.body, "value", None)
    if not isinstance(value, tvm.ir.Call) or not value.op.same_as(CHOICE):
        return False
    return isinstance(value.args[1], TensorLoad) and isinstance(value.args[2], tvm.ir.Constant)


def _is_constant(size: Expr) -> bool:
    return isinstance(size, tirx.IntImm)
