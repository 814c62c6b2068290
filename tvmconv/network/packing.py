"""Weights that are laid out when a network is built.

The templates of convolutions whose channels meet lay the weight out at the start of each call, in a stage "packed". A
network's weights are constants: the stage runs once, when the network is built, and the kernel reads its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

from .. import lowering
from ..workspace import steps
from .constants import Array


class Packing:
    """A function that computes at once what a kernel reads in the place of a weight."""

    def __init__(self, code: tvm.runtime.Module, specs: Sequence[tuple[list[int], str]]) -> None:
        """Take the code for this machine's CPU, and the shape and dtype of each result."""
        self.code, self.specs = code, specs

    def __call__(self, weight: Array) -> list[tvm.runtime.Tensor]:
        made = [tvm.runtime.empty(*spec) for spec in self.specs]
        self.code[PACKED](tvm.runtime.tensor(weight), *made)
        return made


PACKED = "packed"
"""The name of the stage that lays the weight out, and of its buffer."""


def split_packing(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Packing | None]:
    """Return a kernel that reads the weight laid out, and the function that lays it out; None without such a stage.

    All that is computed from the weight alone goes that way, such as the offsets of integers with a zero point, and the
    float32 numbers of a weight in bfloat16 that the laying out begins with.

    Before: `def kernel(x, w, output): for ...: packed[...] = w[...]; for ...: output[...] = ... packed[...]`.
    After: `def kernel(x, packed, output): for ...: output[...] = ... packed[...]`.
    """
    root, weight = func.body.block, func.params[1]
    known, stages, others = [weight], list[tirx.Stmt](), list[tirx.Stmt]()
    for step in steps(root):
        used = _used(step, [*func.params, *root.alloc_buffers])
        new = _without(used, known)
        if len(new) == 1 < len(used) and not _without(new, root.alloc_buffers):
            known += new
            stages.append(step)
        else:
            others.append(step)
    if PACKED not in [buffer.name for buffer in known]:
        return func, None
    made = known[1:]
    buffers = _used(tirx.stmt_seq(*others), made)

    def function(
        params: Sequence[tvm.ir.Var], body: Sequence[tirx.Stmt], buffers: Sequence[tvm.ir.Var]
    ) -> tirx.PrimFunc:
        block = SBlock([], [], [], root.name_hint, tirx.stmt_seq(*body), alloc_buffers=buffers)
        return tirx.PrimFunc(params, SBlockRealize([], True, block), func.ret_type, attrs=func.attrs)

    kernel_params = [func.params[0], *buffers, *func.params[2:]]
    kernel = function(kernel_params, others, _without(root.alloc_buffers, made))
    return kernel, _compiled(function([weight, *buffers], stages, _without(made, buffers)))


def _without(items: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return the items that are none of the others."""
    return [each for each in items if not any(each.same_as(other) for other in others)]


def _used(step: tirx.Stmt, buffers: Sequence[tvm.ir.Var]) -> list[tvm.ir.Var]:
    """Return those of the buffers that a statement uses."""
    found: list[tvm.ir.Var] = []
    tvm_ffi.structural_walk(step, [(tvm.ir.Var, found.append)])
    return [buffer for buffer in buffers if any(buffer.same_as(each) for each in found)]


def _compiled(stages: tirx.PrimFunc) -> Packing:
    """Compile the stages for this machine's CPU, whatever they were scheduled for.

    They run once: optimising them would take longer than they do.
    """
    twin = lowering.build_twin_function(stages.with_attr("global_symbol", PACKED))
    specs = [([int(size) for size in each.ty.shape], str(each.ty.dtype)) for each in stages.params[1:]]
    return Packing(twin.executable.mod, specs)
