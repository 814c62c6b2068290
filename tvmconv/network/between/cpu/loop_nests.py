"""The loops of TVM's operators between the convolutions on a CPU: estimates of their work, and the fusion of loops."""

from __future__ import annotations

from itertools import takewhile
from math import prod

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.s_tir.stmt import SBlock

from tvmconv.compute.substitution import CHOICE

LEAST_WORK = 2**14
"""The number of steps of a loop nest, a vector each, from which waking the threads pays."""

LEAST_ELEMENTS = 2**16
"""The number of steps, an element each, of a loop nest that LLVM makes vectors of, from which waking the threads pays.

It is an estimate, not measured: these elements take 5 to 20 us, and waking a thread on a free core takes 2 to 5 us.
"""

WINDOW = 64
"""The largest number of elements of a window that is unrolled, so that LLVM makes vectors of the outputs."""


def assumed_extent(extent: tirx.PrimExpr, depth: int) -> int:
    """Return the extent of a loop; of one that is known only when the model runs, 1 for the outermost loop, else 16."""
    return int(extent) if isinstance(extent, tirx.IntImm) else 16 if depth else 1


def step_count(sch: Schedule, block: SBlockRV) -> int:
    """Return the number of steps of a block's loops, with those inside of it."""
    inside = sch.get_child_blocks(block)
    loops = sch.get_loops(inside[0]) if inside else sch.get_loops(block)
    return prod(assumed_extent(sch.get(loop).extent, depth) for depth, loop in enumerate(loops))


def fuse_innermost(sch: Schedule, block: SBlockRV, max_loops: int) -> None:
    """Fuse the innermost loops of an elementwise block, `max_loops` at most, into one loop that LLVM can vectorize."""
    loops, value = sch.get_loops(block), sch.get(block)
    if (joined := min(_joined(value), max_loops)) > 1:
        sch.fuse(*loops[len(loops) - joined :])
    elif joined == 1 and _moves(value):
        extent = sch.get(loops[-1]).extent
        if isinstance(extent, tirx.IntImm) and int(extent) <= WINDOW:
            sch.vectorize(loops[-1])  # LLVM would rather unroll the loop


def _moves(block: SBlock) -> bool:
    """Return whether a block stores elements as it loads them, perhaps choosing between several."""
    values = [block.body.value]
    while values:
        if isinstance(value := values.pop(), tvm.ir.Call) and value.op.same_as(CHOICE):
            values += value.args[1:]
        elif not isinstance(value, (TensorLoad, tirx.FloatImm, tirx.IntImm)):
            return False
    return True


def _joined(block: SBlock) -> int:
    """Return the number of a block's last axes that may become one, as they are contiguous in every tensor."""
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        return 0
    accesses = [(block.body.buffer, block.body.indices)]
    load = tvm.ir.expr.TensorLoad
    tvm_ffi.structural_walk(block.body, [(load, lambda each: accesses.append((each.source, each.indices)))])

    def is_contiguous_along(depth: int, axis: tirx.IterVar) -> bool:
        return all(
            len(indices) >= depth
            and indices[-depth].same_as(axis.var)
            and tvm_ffi.structural_equal(tensor.ty.shape[-depth], axis.dom.extent)
            for tensor, indices in accesses
        )

    axes = enumerate(reversed(block.iter_vars), start=1)
    return sum(takewhile(bool, (is_contiguous_along(depth, axis) for depth, axis in axes)))
