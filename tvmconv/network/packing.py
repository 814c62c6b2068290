"""Weights that are laid out when a network is built.

The templates of convolutions whose channels meet lay the weight out at the start of each call, in a stage "packed". A
network's weights are constants: the stage runs once, when the network is built, and the kernel reads its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

from .. import lowering
from ..serial import serial_twin
from ..targets import resolve_target
from ..workspace import steps
from .constants import Array

Packing = Callable[[Array], tvm.runtime.Tensor]
"""A function that lays out a weight at once."""

PACKED = "packed"
"""The name of the stage that lays the weight out, and of its buffer."""


def split_packing(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Packing | None]:
    """Return a kernel that reads the weight laid out, and the function that lays it out; None without such a stage.

    Before: `def kernel(x, w, output): for ...: packed[...] = w[...]; for ...: output[...] = ... packed[...]`.
    After: `def kernel(x, packed, output): for ...: output[...] = ... packed[...]`.
    """
    root = func.body.block
    stage = next((step for step in steps(root) if _stages(step) == [PACKED]), None)
    if stage is None:
        return func, None
    packed = next(buffer for buffer in root.alloc_buffers if buffer.name == PACKED)
    weight = func.params[1]

    def function(
        params: Sequence[tvm.ir.Var], body: Sequence[tirx.Stmt], buffers: Sequence[tvm.ir.Var]
    ) -> tirx.PrimFunc:
        block = SBlock([], [], [], root.name_hint, tirx.stmt_seq(*body), alloc_buffers=buffers)
        return tirx.PrimFunc(params, SBlockRealize([], True, block), func.ret_type, attrs=func.attrs)

    kernel = function(
        [packed if param.same_as(weight) else param for param in func.params],
        [step for step in steps(root) if not step.same_as(stage)],
        [buffer for buffer in root.alloc_buffers if not buffer.same_as(packed)],
    )
    return kernel, _compiled(function([weight, packed], [stage], []))


def _stages(step: tirx.Stmt) -> list[str]:
    """Return the names of the stages that a statement computes."""
    names: list[str] = []
    tvm_ffi.structural_walk(step, [(SBlock, lambda block: names.append(str(block.name_hint)))])
    return names


def _compiled(stage: tirx.PrimFunc) -> Packing:
    """Compile the stage for this machine's CPU, whatever it was scheduled for."""
    stage = serial_twin(stage).with_attr("global_symbol", PACKED)
    executable = lowering.build(tvm.IRModule({PACKED: stage}), resolve_target("llvm"))
    shape, dtype = [int(size) for size in stage.params[1].ty.shape], str(stage.params[1].ty.dtype)

    def packing(weight: Array) -> tvm.runtime.Tensor:
        laid_out = tvm.runtime.empty(shape, dtype)
        executable[PACKED](tvm.runtime.tensor(weight), laid_out)
        return laid_out

    return packing
