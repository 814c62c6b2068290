"""Schedules for TVM's operators between the convolutions on a CPU, which TVM runs one element after the other."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import takewhile
from math import prod

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.error import InternalError
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.compute.substitution import CHOICE
from tvmconv.lowering import OPAQUE, is_scheduled, with_nonnegative_dividends
from tvmconv.targets.devices import MAX_LANES, TURNS, cpu_of

from ...graph.faults import tvm_errors_as_refusals
from ..fusing import REVERSING, fuse
from ..lowerings import CPU_LOWERINGS
from ..reductions import LANES, mark_for_vectors, with_vectors
from ..stages import is_map, variables_in, with_simple_indices
from .blocked import BLOCKED, PARALLEL, can_be_blocked, columns_inside, mark_for_blocks, with_blocks
from .loop_nests import LEAST_ELEMENTS, LEAST_WORK, WINDOW, assumed_extent, fuse_innermost
from .row_loops import spread_rows
from .vector_functions import with_vector_functions

MAX_PARTS = 8
"""The largest divisor of an index for which a loop is copied for each remainder, as for channels in a shuffle."""


def lower_and_fuse(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with its operators lowered and fused as TVM does."""
    passes = relax.transform
    lower = [passes.LegalizeOps({**CPU_LOWERINGS, **REVERSING}), passes.AnnotateTIROpPattern(), passes.FoldConstant()]
    with target, tvm_errors_as_refusals():
        return fuse(tvm.transform.Sequential(lower)(mod))


def spread_over_threads(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module, which is lowered and fused, with its loops scheduled for the CPU.

    Fused stages are computed element by element in one loop nest, without tensors in between; a padded plane is made by
    the thread that slides windows over it. Outer loops run in parallel, and inner loops are such that LLVM vectorizes
    them, with exponentials and the like.

    Before: `y = R.nn.max_pool2d(x)`, lowered to `for n, c, h, w: pad`, `for n, c, h, w, r, s`.
    After: `y = R.call_tir(max_pool2d, (x,))` with `for nc in parallel: (for h, w: pad), for h, w, unrolled r, s`.
    """
    mod = mod.clone()
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc) and has_work(func) and not is_scheduled(func):
            try:
                mod[var] = _spread(func, cpu_of(target).lanes)
            except (InternalError, ScheduleError):  # TVM's, where it cannot divide sizes by each other
                name = var.name_hint
                warnings.warn(f"one thread computes {name}: TVM cannot schedule its open sizes", stacklevel=2)
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
    sch = Schedule(_fused(with_nonnegative_dividends(func)))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        mark_for_vectors(sch, block, lanes)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        mark_for_blocks(sch, block, lanes, WINDOW)
    tasks: dict[str, LoopRV] = {}
    left = [] if spread_rows(sch) else sch.get_child_blocks(sch.get_sblock("root"))
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

    The readers are elementwise, or one reduction that reads each element once.
    """
    sch = Schedule(with_simple_indices(func))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        readers = sch.get_consumers(block)
        if not readers or not is_map(sch, block):
            continue
        if all(is_map(sch, each) for each in readers) or (len(readers) == 1 and _is_reduced(sch, block, readers[0])):
            with suppress(ScheduleError):  # such as for a block that is read at indices which TVM cannot analyze
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


def _spread_block(sch: Schedule, block: SBlockRV, lanes: int) -> LoopRV | None:
    """Schedule the loops of a block; return the parallel loop if windows slide over planes inside it."""
    loops, value = list(sch.get_loops(block)), sch.get(block)
    extents = [sch.get(loop).extent for loop in loops]
    if len(loops) != len(value.iter_vars):
        return None
    sizes = [assumed_extent(extent, depth) for depth, extent in enumerate(extents)]
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

    # The fewest outer loops with enough turns; the innermost is left for LLVM to vectorize, unless it is of a sum.
    max_outer = spatial - 1 if slides or spatial == len(loops) else spatial
    inner = 0
    if (found := _axis_of_remainders(value)) is not None and found[0] < max_outer:
        axis, parts = found
        loops[axis], part = sch.split(loops[axis], [None, parts])
        sch.unroll(part)
        max_outer = inner = axis + 1
    outer = next((count for count in range(1, max_outer) if prod(sizes[:count]) >= TURNS), max_outer)
    if spatial == len(loops):
        fuse_innermost(sch, block, spatial - max(outer, inner))
    if prod(sizes) < LEAST_ELEMENTS:
        return None
    shared = loops[:outer]
    if spatial == len(loops) and outer == max_outer and not inner and prod(sizes[:outer]) < TURNS:
        shared += _split_innermost(sch, block, -(-TURNS // prod(sizes[:outer])))
    if not shared:
        return None
    task = sch.fuse(*shared)
    sch.parallel(task)
    return task if slides and outer == spatial - 2 else None


def _split_innermost(sch: Schedule, block: SBlockRV, max_parts: int) -> list[LoopRV]:
    """Split the last loop of a block into at most `max_parts` equal parts of whole vectors, and return the outer loop.

    The list is empty where the loop cannot be split so.
    """
    *_, innermost = sch.get_loops(block)
    extent = sch.get(innermost).extent
    if not isinstance(extent, tirx.IntImm):
        return []
    parts = next((count for count in range(max_parts, 1, -1) if int(extent) % (count * MAX_LANES) == 0), 1)
    return [sch.split(innermost, [parts, None])[0]] if parts > 1 else []


def _reduces_rows(block: SBlock, spatial: int) -> bool:
    """Return whether a block reduces rows to a row: the last axis of its outputs is the last one of all operands."""
    axis = block.iter_vars[spatial - 1]
    if not spatial or not isinstance(block.body, tirx.BufferStore) or not isinstance(axis.dom.extent, tirx.IntImm):
        return False
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(block.body.value, [(TensorLoad, loads.append)])
    # An operand without axes is the same number for a whole row.
    accesses = [block.body.indices, *(each.indices for each in loads if len(each.indices))]
    return all(indices[-1].same_as(axis.var) and axis.var not in variables_in(indices[:-1]) for indices in accesses)


def _spread_columns(sch: Schedule, block: SBlockRV, sizes: list[int], spatial: int, width: int) -> None:
    """Schedule a block that reduces rows to a row: `width` columns are reduced at a time, as vectors.

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


def _spread_vectors(sch: Schedule, block: SBlockRV) -> None:
    """Schedule the loops around a block that `with_vectors` will fill; each run of the block is one step."""
    loops, (inner,) = sch.get_loops(block), sch.get_child_blocks(block)
    sizes, steps = (
        [assumed_extent(sch.get(loop).extent, depth) for depth, loop in enumerate(sch.get_loops(each))]
        for each in (block, inner)
    )
    if prod(sizes) * prod(steps) < LEAST_WORK * int(sch.get(block).annotations[LANES]):
        return
    outer = next((count for count in range(1, len(loops)) if prod(sizes[:count]) >= TURNS), len(loops))
    sch.parallel(sch.fuse(*loops[:outer]))


def _spread_blocked(sch: Schedule, block: SBlockRV) -> None:
    """Spread a marked reduction over threads, by its outer loops, or by its columns where the outer turns are few."""
    loops, (inner,) = sch.get_loops(block), sch.get_child_blocks(block)
    sizes, steps = (
        [assumed_extent(sch.get(loop).extent, depth) for depth, loop in enumerate(sch.get_loops(each))]
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


def _axis_of_remainders(block: SBlock) -> tuple[int, int] | None:
    """Return the axis of which an index or condition takes the remainder by a small number, and this number.

    None unless there is just one such remainder. In an unrolled loop over the remainders, such as over the groups of
    channels in a shuffle, LLVM gets constant conditions and indices.
    """
    remainders: list[tirx.FloorMod] = []
    tvm_ffi.structural_walk(block.body, [(tirx.FloorMod, remainders.append)])
    # Of several remainders TVM's lowering loses some once a loop is unrolled.
    for remainder in remainders if len({str(each) for each in remainders}) == 1 else []:
        for axis_number, axis in enumerate(block.iter_vars):
            if remainder.a.same_as(axis.var) and isinstance(remainder.b, tirx.IntImm):
                parts = int(remainder.b)
                if (
                    parts <= MAX_PARTS
                    and isinstance(axis.dom.extent, tirx.IntImm)
                    and int(axis.dom.extent) % parts == 0
                ):
                    return axis_number, parts
    return None
