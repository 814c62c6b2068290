"""Reductions of rows and of columns on a CPU, which use vectors and add up long sums in blocks.

A sum that adds one float32 number after the other rounds at each addition, and LLVM, which keeps the order of
additions, does not vectorize it. Here the sum of a row has a few vectors, its accumulators, whose lanes are added up
after `STEPS` additions to each; sums of columns have a lane for each column, and end after the same number of
additions. Sums of such blocks are added up in float64. The blocks depend on sizes alone: results are the same for any
number of threads.
"""

from __future__ import annotations

from itertools import dropwhile, takewhile
from math import prod

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.s_tir.stmt import SBlock

from ..stages import Stage, is_contraction, loads_in, stage_of, variables_in
from .blocked_code import WIDER, Columns, Row
from .flat_axes import column_of, row_lanes

BLOCKED = "tvmconv.blocked"
"""The annotation of a block that `with_blocks` fills; its value is the number of float32 lanes of a vector."""

PARALLEL = "tvmconv.parallel"
"""The annotation of a block that `with_blocks` fills whose columns are spread over threads."""


def mark_for_blocks(sch: Schedule, block: SBlockRV, lanes: int, window: int) -> None:
    """Put a block around a reduction of rows or columns; `with_blocks` fills it when the loops are scheduled.

    Windows of at most `window` elements that slide along an axis stay as they are, and so do products of matrices.

    Before: `for n, c, h, w: block`, which adds up h and w.
    After: `for n, c: marked`, in which is `for h, w: block`.
    """
    loops, value = sch.get_loops(block), sch.get(block)
    if len(loops) != len(value.iter_vars) or (stage := _blockable_stage(value, window)) is None:
        return
    columns, outputs = column_of(stage), list(takewhile(_is_output, value.iter_vars))
    if columns is None and row_lanes(stage, lanes) == 1:
        return
    if columns is not None and columns.zeros and (_is_read_in_part(sch, block) or _is_unused(sch, block)):
        return  # indices run on into the next row, but TVM would allocate only the part of the result that is read
    inside = set() if columns is None else {columns.axis, *columns.zeros}
    first = next((number for number, axis in enumerate(outputs) if axis.var in inside), len(outputs))
    sch.annotate(sch.blockize(loops[first]), BLOCKED, lanes)


def _is_read_in_part(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a reader reads only a part of a block's result."""
    results = [region.source for region in sch.get(block).writes]
    for reader in map(sch.get, sch.get_consumers(block)):
        whole = {axis.var: axis.dom.extent for axis in reader.iter_vars}
        for region in reader.reads:
            if not any(region.source.same_as(result) for result in results):
                continue
            for size, part in zip(region.source.ty.shape, region.region, strict=True):
                extent = whole.get(part.min, part.extent) if isinstance(part.min, tvm.ir.Var) else part.extent
                if not tvm_ffi.structural_equal(extent, size):
                    return True
    return False


def _is_unused(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether the result of a block has no reader, and is no output of the function."""
    outputs = {var for function in sch.mod.functions.values() for var in function.params}
    return not sch.get_consumers(block) and not any(region.source in outputs for region in sch.get(block).writes)


def can_be_blocked(block: SBlock, window: int) -> bool:
    """Return whether `mark_for_blocks` takes a block, except for rows that are shorter than any vector."""
    return _blockable_stage(block, window) is not None


def with_blocks(block: SBlock) -> SBlock:
    """Return a marked block whose loops are replaced by sums in accumulators; return any other block unchanged.

    Before, with rows of 1000: `for k in range(1000): y = y + x[k]`.
    After: `for k in range(15): a[0:64] += x[64 * k : 64 * k + 64]`, where a is four vectors; then three vectors of the
    other 40 elements, and `y = a[0] + ... + a[63]`, by halves.
    """
    if BLOCKED not in block.annotations:
        return block
    stage, lanes = _stage_inside(block), int(block.annotations[BLOCKED])
    columns, used = column_of(stage), {}
    code = Row(stage, lanes) if columns is None else Columns(stage, lanes, PARALLEL in block.annotations)
    body, reads, writes = code.statement(), block.reads, block.writes
    if columns is not None and columns.zeros:
        # Indices run on into the next row: TVM, which would shrink the arrays, is told the regions that are used.
        used = {f"explicit_{word}_region": [*range(len(each))] for word, each in (("read", reads), ("write", writes))}
    return SBlock(block.iter_vars, reads, writes, block.name_hint, body, alloc_buffers=code.buffers, annotations=used)


def is_row(block: SBlock) -> bool:
    """Return whether a block is a marked reduction of rows."""
    return BLOCKED in block.annotations and columns_inside(block) is None


def columns_inside(block: SBlock) -> tirx.PrimExpr | None:
    """Return the number of columns in a marked block; None for a reduction of rows."""
    columns = column_of(_stage_inside(block))
    return None if columns is None else columns.count


def _stage_inside(block: SBlock) -> Stage:
    """Return the reduction in a marked block, whose initial value lies in a block beside the one that updates it."""
    inside: list[SBlock] = []
    tvm_ffi.structural_walk(block.init, [(SBlock, inside.append)])
    tvm_ffi.structural_walk(block.body, [(SBlock, inside.append)])
    init, update = inside
    reads, writes, name = update.reads, update.writes, update.name_hint
    stage = stage_of(SBlock(update.iter_vars, reads, writes, name, update.body, init.body))
    assert stage is not None, "it was a stage when the block was marked"
    return stage


def _is_output(axis: tirx.IterVar) -> bool:
    return bool(axis.iter_type == tirx.IterVar.DataPar)


def _blockable_stage(block: SBlock, window: int) -> Stage | None:
    """Return a reduction with one result of a dtype of `WIDER`; None for products, and for small windows that slide."""
    if block.init is None or any(map(_is_output, list(dropwhile(_is_output, block.iter_vars)))):
        return None
    if (stage := stage_of(block)) is None or len(stage.targets) > 1 or not stage.reduced or is_contraction(stage):
        return None
    inside, outside = set(stage.reduced), set(stage.outer)
    if str(stage.targets[0].ty.dtype) not in WIDER or variables_in(stage.reduced.values()) & outside:
        return None
    loads = [load for load, _ in loads_in(stage.values[0])]
    indices = [variables_in([index]) for load in loads for index in load.indices]
    if not any(each & inside and each & outside for each in indices):
        return stage
    is_known = all(isinstance(extent, tirx.IntImm) for extent in stage.reduced.values())
    return stage if is_known and prod(map(int, stage.reduced.values())) > window else None
