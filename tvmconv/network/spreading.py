"""Threads for what TVM computes between the convolutions on a CPU, which it leaves as plain loops on one."""

from __future__ import annotations

from itertools import takewhile
from math import prod

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..lowering import OPAQUE

LEAST_WORK = 2**14
"""Steps of a loop nest that are worth more than to wake the threads."""


def spread_over_threads(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The module with its operators lowered and fused as TVM does, and their loops spread over the CPU's threads.

    Before: `y = R.nn.max_pool2d(x)`, lowered to `for n, c, h, w, r, s`.
    After: `y = R.call_tir(max_pool2d, (x,))` with `for nch in parallel: for w, r, s`.
    """
    passes = relax.transform
    with target:
        mod = tvm.transform.Sequential(
            [
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.FuseOps(),
                passes.FuseTIR(),
            ]
        )(mod)
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc) and not (func.attrs and "tirx.is_scheduled" in func.attrs):
            mod[var] = _spread(func)
    return mod


def _spread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = Schedule(func)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        _spread_block(sch, block)
    return sch.mod["main"].with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def _spread_block(sch: Schedule, block: SBlockRV) -> None:
    """Runs the outer loops of a block in parallel, all but the innermost of those that are no reduction."""
    loops, axes = sch.get_loops(block), sch.get(block).iter_vars
    extents = [sch.get(loop).extent for loop in loops]
    if len(loops) != len(axes) or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return
    spatial = list(takewhile(lambda pair: pair[1].iter_type == tirx.IterVar.DataPar, zip(loops, axes, strict=True)))
    if len(spatial) < 2 or prod(map(int, extents)) < LEAST_WORK:
        return
    sch.parallel(sch.fuse(*(loop for loop, _ in spatial[:-1])))
