"""Loops over rows on a CPU, each for several stages, such as those of a softmax or of a norm."""

from __future__ import annotations

from itertools import takewhile
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv.targets.devices import TURNS

from ..stages import is_map
from .blocked import is_row
from .loop_nests import LEAST_ELEMENTS, assumed_extent, fuse_innermost, step_count


def spread_rows(sch: Schedule) -> bool:
    """Schedule all stages of a function in one loop over rows, and return whether this was done.

    It is done where each stage reads no other row of the stages before it, all reductions are of rows, and there are
    enough rows for all threads, if there is work for them. Tensors between the stages are then no longer than a row.

    Before: `for n, k: most[n] = max(most[n], x[n, k])`, and `for n, k: y[n, k] = x[n, k] - most[n]`.
    After: `for n in parallel: (for k: most[0] = max(most[0], x[n, k])), for k: y[n, k] = x[n, k] - most[0]`.
    """
    *others, last = blocks = sch.get_child_blocks(sch.get_sblock("root"))
    reductions = [sch.get(each) for each in blocks if not is_map(sch, each)]
    if not others or not reductions or not all(map(is_row, reductions)):
        return False
    between = list(sch.get(sch.get_sblock("root")).alloc_buffers)
    written = [access.source for block in others for access in sch.get(block).writes]
    if not all(any(each.same_as(buffer) for buffer in between) for each in written):
        return False
    depth = min(_shared(sch, each, last, between) for each in blocks)
    loops = sch.get_loops(last)[:depth]
    turns = prod(assumed_extent(sch.get(loop).extent, depth) for depth, loop in enumerate(loops))
    is_parallel = max(step_count(sch, each) for each in blocks) >= LEAST_ELEMENTS
    if not depth or not all(map(sch.get_consumers, others)) or (is_parallel and turns < TURNS):
        return False
    task = sch.fuse(*loops)
    for block in reversed(others):
        sch.compute_at(block, task, preserve_unit_loops=True)
    for block in blocks:
        if is_map(sch, block):
            fuse_innermost(sch, block, len(sch.get(block).iter_vars) - depth)
    if is_parallel:
        sch.parallel(task)
    return True


def _shared(sch: Schedule, block: SBlockRV, last: SBlockRV, between: list[Any]) -> int:
    """Return the number of outer loops that a block shares with the last one: each turn reads and writes its row alone.

    `between` are the tensors that blocks write for others.
    """
    accesses: list[list[tirx.PrimExpr]] = []

    def add(access: tirx.BufferStore | TensorLoad) -> None:
        buffer = access.buffer if isinstance(access, tirx.BufferStore) else access.source
        if any(buffer.same_as(each) for each in between):
            accesses.append(list(access.indices))

    tvm_ffi.structural_walk(sch.get(block), [((tirx.BufferStore, TensorLoad), add)])
    axes = zip(sch.get_loops(block), sch.get_loops(last), sch.get(block).iter_vars, strict=False)

    def is_shared(depth: int, loop: LoopRV, of_last: LoopRV, axis: tirx.IterVar) -> bool:
        extent = sch.get(loop).extent
        if axis.iter_type != tirx.IterVar.DataPar or not tvm_ffi.structural_equal(extent, sch.get(of_last).extent):
            return False
        is_one = isinstance(extent, tirx.IntImm) and int(extent) == 1
        return all(len(each) > depth and (is_one or each[depth].same_as(axis.var)) for each in accesses)

    return sum(takewhile(bool, (is_shared(depth, *each) for depth, each in enumerate(axes))))
