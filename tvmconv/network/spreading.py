"""Schedules for TVM's operators between the convolutions on a CPU, which TVM runs one element after the other."""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.s_tir.stmt import SBlock, SBlockRealize

from ..lowering import OPAQUE, is_scheduled
from ..schedules.cpu.machine import TURNS, native_lanes
from ..substitution import CHOICE
from .blocked import BLOCKED, PARALLEL, can_be_blocked, columns_inside, is_row, mark_for_blocks, with_blocks
from .norms import LOWERINGS
from .reductions import LANES, mark_for_vectors, with_vectors
from .stages import is_map, variables_in, with_simple_indices
from .vector_functions import with_vector_functions

LEAST_WORK = 2**14
"""The number of steps of a loop nest from which waking the threads pays."""

WINDOW = 64
"""The largest number of elements of a window that is unrolled, so that LLVM makes vectors of the outputs."""

MOST_PARTS = 8
"""The largest number of channels that a shuffle takes in turns to get a copy of the loop for each."""


def lower_and_fuse(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with its operators lowered and fused as TVM does."""
    passes = relax.transform
    with target:
        return tvm.transform.Sequential(
            [
                passes.LegalizeOps(LOWERINGS),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.FuseOps(),
                passes.FuseTIR(),
            ]
        )(mod)


def spread_over_threads(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module, which is lowered and fused, with its loops scheduled for the CPU.

    Fused stages are computed element by element in one loop nest, without tensors in between; a padded plane is made
    by the thread that slides windows over it. Outer loops run in parallel, and inner ones such that LLVM sees vectors,
    of exponentials and the like too.

    Before: `y = R.nn.max_pool2d(x)`, lowered to `for n, c, h, w: pad`, `for n, c, h, w, r, s`.
    After: `y = R.call_tir(max_pool2d, (x,))` with `for nc in parallel: (for h, w: pad), for h, w, unrolled r, s`.
    """
    mod = mod.clone()
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc) and has_work(func) and not is_scheduled(func):
            mod[var] = _spread(func, native_lanes(target))
    return mod


def has_work(func: tirx.PrimFunc) -> bool:
    """Return whether there are loops to schedule.

    There are none in code that TVM has written by hand, such as a scatter, which is a single block, nor in a function
    with an array of no elements, whose loops run zero times.
    """
    if not isinstance(func.body, SBlockRealize) or str(func.body.block.name_hint) != "root":
        return False
    arrays = [param.ty for param in func.params if hasattr(param.ty, "shape")]
    shapes = [array.shape for array in (*arrays, *(each.ty for each in func.body.block.alloc_buffers))]
    return all(int(size) for shape in shapes for size in shape if isinstance(size, tirx.IntImm))


def _spread(func: tirx.PrimFunc, lanes: int) -> tirx.PrimFunc:
    sch = Schedule(_fused(func))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        mark_for_vectors(sch, block, lanes)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        mark_for_blocks(sch, block, lanes, WINDOW)
    tasks: dict[str, LoopRV] = {}
    left = [] if _spread_rows(sch) else sch.get_child_blocks(sch.get_sblock("root"))
    for block in reversed(left):
        readers = [str(sch.get(each).name_hint) for each in sch.get_consumers(block)]
        if len(readers) == 1 and readers[0] in tasks and is_map(sch, block):
            sch.compute_at(block, tasks[readers[0]], preserve_unit_loops=True)
        elif LANES in sch.get(block).annotations:
            _spread_vectors(sch, block)
        elif BLOCKED in sch.get(block).annotations:
            _spread_blocked(sch, block)
        elif (task := _spread_block(sch, block, lanes)) is not None:
            tasks[str(sch.get(block).name_hint)] = task
    func = tvm_ffi.structural_map(sch.mod["main"], (SBlock, lambda block: with_blocks(with_vectors(block))))
    func = with_vector_functions(func)
    return func.with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def _fused(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with elementwise stages computed inside their readers, with simple indices.

    These are elementwise, or one reduction that reads each element once.
    """
    sch = Schedule(with_simple_indices(func))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        readers = sch.get_consumers(block)
        if not readers or not is_map(sch, block):
            continue
        if all(is_map(sch, each) for each in readers) or (len(readers) == 1 and _is_reduced(sch, block, readers[0])):
            with suppress(ScheduleError):  # such as for one that is read at places that TVM does not see through
                sch.compute_inline(block)
    return with_simple_indices(sch.mod["main"])


def _is_reduced(sch: Schedule, block: SBlockRV, reader: SBlockRV) -> bool:
    """Return whether a reduction reads each element of an elementwise stage once, and vectors can compute that."""
    value, extents = sch.get(block).body.value, []
    for each in (block, reader):
        sizes = [axis.dom.extent for axis in sch.get(each).iter_vars]
        extents.append(sorted(str(size) for size in sizes if not (isinstance(size, tirx.IntImm) and int(size) == 1)))
    choices: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.Call, choices.append)])
    is_plain = not any(call.op.same_as(CHOICE) for call in choices)
    return is_plain and extents[0] == extents[1] and can_be_blocked(sch.get(reader), WINDOW)


def _spread_rows(sch: Schedule) -> bool:
    """Schedule all stages of a function in one loop over rows, and return whether this was done.

    It is where each stage reads no other row of those before it, one of them reduces rows, and there are enough rows
    for all threads, if there is work for them. What is between the stages is then no longer than a row.

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
    turns = prod(_assumed(sch.get(loop).extent, place) for place, loop in enumerate(loops))
    is_parallel = max(_work(sch, each) for each in blocks) >= LEAST_WORK
    if not depth or not all(map(sch.get_consumers, others)) or (is_parallel and turns < TURNS):
        return False
    task = sch.fuse(*loops)
    for block in reversed(others):
        sch.compute_at(block, task, preserve_unit_loops=True)
    for block in blocks:
        if is_map(sch, block):
            _join(sch, block, len(sch.get(block).iter_vars) - depth)
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

    def is_shared(place: int, loop: LoopRV, of_last: LoopRV, axis: tirx.IterVar) -> bool:
        extent = sch.get(loop).extent
        if axis.iter_type != tirx.IterVar.DataPar or not tvm_ffi.structural_equal(extent, sch.get(of_last).extent):
            return False
        is_one = isinstance(extent, tirx.IntImm) and int(extent) == 1
        return all(len(each) > place and (is_one or each[place].same_as(axis.var)) for each in accesses)

    return sum(takewhile(bool, (is_shared(place, *each) for place, each in enumerate(axes))))


def _work(sch: Schedule, block: SBlockRV) -> int:
    """Return the number of steps of a block's loops, with those inside of it."""
    inside = sch.get_child_blocks(block)
    loops = sch.get_loops(inside[0]) if inside else sch.get_loops(block)
    return prod(_assumed(sch.get(loop).extent, place) for place, loop in enumerate(loops))


def _spread_block(sch: Schedule, block: SBlockRV, lanes: int) -> LoopRV | None:
    """Schedule the loops of a block; return the parallel loop if windows slide over planes inside it."""
    loops, value = list(sch.get_loops(block)), sch.get(block)
    extents = [sch.get(loop).extent for loop in loops]
    if len(loops) != len(value.iter_vars):
        return None
    sizes = [_assumed(extent, place) for place, extent in enumerate(extents)]
    kinds = [axis.iter_type for axis in value.iter_vars]
    spatial = sum(1 for _ in takewhile(lambda kind: kind == tirx.IterVar.DataPar, kinds))
    is_known = all(isinstance(extent, tirx.IntImm) for extent in extents[spatial:])
    slides = spatial < len(loops) and is_known and prod(sizes[spatial:]) <= WINDOW
    if spatial < len(loops) and not slides and _reduces_rows(value, spatial):
        width = sizes[spatial - 1] if sizes[spatial - 1] <= WINDOW else lanes
        if sizes[spatial - 1] % width == 0:
            _spread_columns(sch, block, sizes, spatial, width)
            return None
    if slides:
        for loop in loops[spatial:]:
            sch.unroll(loop)

    # The fewest outer loops that are turns enough; the innermost is for LLVM to make vectors of, except of a sum.
    most = spatial - 1 if slides or spatial == len(loops) else spatial
    inner = 0
    if (found := _taken_apart(value)) is not None and found[0] < most:
        axis, parts = found
        loops[axis], part = sch.split(loops[axis], [None, parts])
        sch.unroll(part)
        most = inner = axis + 1
    outer = next((count for count in range(1, most) if prod(sizes[:count]) >= TURNS), most)
    if spatial == len(loops):
        _join(sch, block, spatial - max(outer, inner))
    if outer < 1 or prod(sizes) < LEAST_WORK:
        return None
    task = sch.fuse(*loops[:outer])
    sch.parallel(task)
    return task if slides and outer == spatial - 2 else None


def _reduces_rows(block: SBlock, spatial: int) -> bool:
    """Return whether a block reduces rows to a row: the last of its outputs' axes is the last of all that it reads."""
    axis = block.iter_vars[spatial - 1]
    if not spatial or not isinstance(block.body, tirx.BufferStore) or not isinstance(axis.dom.extent, tirx.IntImm):
        return False
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(block.body.value, [(TensorLoad, loads.append)])
    # A number by itself is the same for all of a row.
    places = [block.body.indices, *(each.indices for each in loads if len(each.indices))]
    return all(indices[-1].same_as(axis.var) and axis.var not in variables_in(indices[:-1]) for indices in places)


def _spread_columns(sch: Schedule, block: SBlockRV, sizes: list[int], spatial: int, width: int) -> None:
    """Schedule a block that reduces rows to a row: a vector of so many columns is reduced at a time.

    Before: `for c: for h, w: y[c] += x[h, w, c]`.
    After: `for co in parallel: for h, w: y[co * width : ...] += x[h, w, co * width : ...]`.
    """
    loops = list(sch.get_loops(block))
    column, vector = sch.split(loops[spatial - 1], [None, width])
    outer, reduced = [*loops[: spatial - 1], column], loops[spatial:]
    sch.reorder(*outer, *reduced, vector)
    if prod(sizes) >= LEAST_WORK * width:
        sch.parallel(sch.fuse(*outer))
    sch.vectorize(vector)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(block, reduced[0]))[-1])


def _join(sch: Schedule, block: SBlockRV, most: int) -> None:
    """Join as many of the last loops of an elementwise block as may be one, of at most `most`, for LLVM's vectors."""
    loops, value = sch.get_loops(block), sch.get(block)
    if (joined := min(_joined(value), most)) > 1:
        sch.fuse(*loops[len(loops) - joined :])
    elif joined == 1 and _moves(value):
        extent = sch.get(loops[-1]).extent
        if isinstance(extent, tirx.IntImm) and int(extent) <= WINDOW:
            sch.vectorize(loops[-1])  # LLVM would rather unroll the loop


def _moves(block: SBlock) -> bool:
    """Return whether a block stores elements as it loads them, perhaps one of several."""
    values = [block.body.value]
    while values:
        if isinstance(value := values.pop(), tvm.ir.Call) and value.op.same_as(CHOICE):
            values += value.args[1:]
        elif not isinstance(value, (TensorLoad, tirx.FloatImm, tirx.IntImm)):
            return False
    return True


def _assumed(extent: tirx.PrimExpr, place: int) -> int:
    """Return the extent of a loop; for one that is known only when the model runs 1 if it is the outermost, else 16."""
    return int(extent) if isinstance(extent, tirx.IntImm) else 16 if place else 1


def _spread_vectors(sch: Schedule, block: SBlockRV) -> None:
    """Schedule the loops around a block that is going to use vectors; each run of the block is one step."""
    loops, (inner,) = sch.get_loops(block), sch.get_child_blocks(block)
    sizes, steps = (
        [_assumed(sch.get(loop).extent, place) for place, loop in enumerate(sch.get_loops(each))]
        for each in (block, inner)
    )
    if prod(sizes) * prod(steps) < LEAST_WORK * int(sch.get(block).annotations[LANES]):
        return
    outer = next((count for count in range(1, len(loops)) if prod(sizes[:count]) >= TURNS), len(loops))
    sch.parallel(sch.fuse(*loops[:outer]))


def _spread_blocked(sch: Schedule, block: SBlockRV) -> None:
    """Spread a marked reduction over threads, by its outer loops, or where these are few by its columns."""
    loops, (inner,) = sch.get_loops(block), sch.get_child_blocks(block)
    sizes, steps = (
        [_assumed(sch.get(loop).extent, place) for place, loop in enumerate(sch.get_loops(each))]
        for each in (block, inner)
    )
    if prod(sizes) * prod(steps[len(sizes) :]) < LEAST_WORK * int(sch.get(block).annotations[BLOCKED]):
        return
    columns = columns_inside(sch.get(block))
    if prod(sizes) < TURNS and columns is not None:
        sch.annotate(block, PARALLEL, 1)
    elif loops:
        outer = next((count for count in range(1, len(loops)) if prod(sizes[:count]) >= TURNS), len(loops))
        sch.parallel(sch.fuse(*loops[:outer]))


def _taken_apart(block: SBlock) -> tuple[int, int] | None:
    """Return the axis of which an index or condition takes the remainder by a small number, and this number.

    None unless there is just one such remainder. With an unrolled loop over the remainders, such as over the channels
    that a shuffle takes in turns, conditions and indices are constant in what is left for LLVM.
    """
    remainders: list[tirx.FloorMod] = []
    tvm_ffi.structural_walk(block.body, [(tirx.FloorMod, remainders.append)])
    # Of several TVM's lowering loses some once a loop is unrolled.
    for remainder in remainders if len({str(each) for each in remainders}) == 1 else []:
        for place, axis in enumerate(block.iter_vars):
            if remainder.a.same_as(axis.var) and isinstance(remainder.b, tirx.IntImm):
                parts = int(remainder.b)
                if (
                    parts <= MOST_PARTS
                    and isinstance(axis.dom.extent, tirx.IntImm)
                    and int(axis.dom.extent) % parts == 0
                ):
                    return place, parts
    return None


def _joined(block: SBlock) -> int:
    """Return how many of a block's last axes may become one: every tensor holds them one behind the other."""
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        return 0
    accesses = [(block.body.buffer, block.body.indices)]
    load = tvm.ir.expr.TensorLoad
    tvm_ffi.structural_walk(block.body, [(load, lambda each: accesses.append((each.source, each.indices)))])

    def goes_along(place: int, axis: tirx.IterVar) -> bool:
        return all(
            len(indices) >= place
            and indices[-place].same_as(axis.var)
            and tvm_ffi.structural_equal(tensor.ty.shape[-place], axis.dom.extent)
            for tensor, indices in accesses
        )

    axes = enumerate(reversed(block.iter_vars), start=1)
    return sum(takewhile(bool, (goes_along(place, axis) for place, axis in axes)))
