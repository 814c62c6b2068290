"""Fusion of operators for a GPU: what TVM fuses, and also operators element by element before a reduction."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad

from tvmconv.lowering import OPAQUE, is_scheduled

from ...graph.faults import tvm_errors_as_refusals
from ...graph.graph import blocks_of, call_of, calls
from ..cpu.spreading import has_work
from ..fusing import SEPARATED, fuse
from ..lowerings import LOWERINGS
from ..stages import Stage, is_contraction, loads_in, loads_stored_offset, stages_of
from .choice import is_window

BROADCAST, INJECTIVE, REDUCTION, FUSABLE = 1, 2, 3, 4
"""TVM's operator patterns: element by element, perhaps with a broadcast; from elements at any indices; a reduction,
into which TVM fuses the operators before it; an operator into which it fuses the operators after it."""

CHEAP = frozenset(("if_then_else", "fabs", "sqrt", "rsqrt", "floor", "ceil", "round", "pow")) | frozenset(
    ("bitwise_and", "bitwise_xor", "shift_right", "reinterpret")
)
"""The functions that take about as long as a few sums; "pow" is the square that importers write."""


def lower_and_fuse_for_gpu(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with its operators lowered and fused: reductions first with what follows them.

    Before: `y = R.astype(R.mean(R.astype(x, "float32"), axis=[2, 3]), "float16")`.
    After: `y = R.call_tir(fused_cast_mean_cast, (x,))`.
    """
    passes = relax.transform
    lowered = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        passes.LegalizeOps({**LOWERINGS, **SEPARATED}),
        passes.AnnotateTIROpPattern(),
        passes.FoldConstant(),
    ]
    with target, tvm_errors_as_refusals():
        mod = fuse(_with_patterns(tvm.transform.Sequential(lowered)(mod), FUSABLE))
        return fuse(_with_patterns(mod, REDUCTION))


def _with_patterns(mod: tvm.IRModule, of_reductions: int) -> tvm.IRModule:
    """Return the module with a pattern for reductions; for `REDUCTION`, nothing else but cheap maps is to be fused.

    Some maps that TVM does not recognize get their pattern, too: with indices from a table, as in interpolation, and
    reshapes of open sizes.
    """
    mod, read_by_windows = mod.clone(), _read_by_windows(mod)
    for var, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            continue
        stages, pattern = _stages(func), OPAQUE
        if func.attrs.get("op_pattern") == OPAQUE:
            if of_reductions == FUSABLE and stages and not stages[0].is_reduction:
                mod[var] = func.with_attr("op_pattern", INJECTIVE)
            continue
        if any(stage.is_reduction for stage in stages):
            pattern = OPAQUE if any(map(is_contraction, stages)) else of_reductions
        elif stages and _is_cheap(stages[0], is_read_by_windows=var in read_by_windows):
            pattern = BROADCAST
        if pattern == of_reductions or of_reductions == REDUCTION:
            mod[var] = func.with_attr("op_pattern", pattern)
    return mod


def _stages(func: tirx.PrimFunc) -> list[Stage]:
    """Return the stages of a function; none of one that is scheduled, or has loops of other kinds."""
    return stages_of(func) or [] if has_work(func) and not is_scheduled(func) else []


def _read_by_windows(mod: tvm.IRModule) -> set[tvm.ir.GlobalVar]:
    """Return the functions whose results windows read, each element several times."""
    found: set[tvm.ir.GlobalVar] = set()
    for block in blocks_of(mod):
        for call in block.values.values():
            if not calls(call, "call_tir"):
                continue
            if any(map(is_window, _stages(mod[call.args[0]]))):
                makers = [call_of(block.values.get(each), "call_tir") for each in call.args[1].fields]
                found.update(maker.args[0] for maker in makers if maker is not None)
    return found


def _is_cheap(stage: Stage, is_read_by_windows: bool) -> bool:
    """Return whether a map may be repeated wherever it is read: its functions are cheap, and it reads in order."""
    functions: list[Any] = []
    for value in stage.values:
        tvm_ffi.structural_walk(value, [(tvm.ir.Call, functions.append)])
    if any(str(each.op.name).rpartition(".")[2] not in CHEAP for each in functions):
        return False
    loads = [load for value in stage.values for load, _ in loads_in(value)]
    away = [_order(load, stage) for load in loads if not loads_stored_offset(load, stage)]
    orders = [order for order in away if order is not None]
    reordered = [order for order in orders if order != sorted(order)]
    if len(orders) < len(away) or not reordered:
        return len(orders) == len(away)
    # Operands in one order are read by rows or by columns; of two orders, one would be read element by element.
    is_one_order = len(away) == len(loads) and all(len(order) < 2 or order == reordered[0] for order in orders)
    return is_one_order and not is_read_by_windows


def _order(load: TensorLoad, stage: Stage) -> list[int] | None:
    """Return the numbers of the axes that are a load's indices, in order; None if an index is anything else."""
    numbers = {axis: number for number, axis in enumerate(stage.outer)}
    if not all(index in numbers or isinstance(index, tirx.IntImm) for index in load.indices):
        return None
    return [numbers[index] for index in load.indices if index in numbers]
