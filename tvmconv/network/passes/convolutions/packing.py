"""Weights that are packed when a network is built.

Templates pack the weight at the start of each call, most of them in a stage "packed", and add up the products of a zero
point. A network's weights are constants: the stages that read the weight alone run once, when the network is built, and
the kernel reads their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv import lowering
from tvmconv.lowering.workspace import passed_between_statements, statements_of
from tvmconv.targets import llvm

from ...graph.constants import Array


class Packing:
    """The compiled function that computes from a weight the tensors that a kernel reads instead."""

    def __init__(self, code: tvm.runtime.Module, specs: Sequence[tuple[list[int], str]], keeps_weight: bool) -> None:
        """Take the code for this machine's CPU, and the shape and dtype of each result.

        With `keeps_weight`, the kernel also reads the weight itself, which comes first.
        """
        self.code, self.specs, self.keeps_weight = code, specs, keeps_weight

    def __call__(self, weight: Array) -> list[tvm.runtime.Tensor]:
        weight_tensor, packed = tvm.runtime.tensor(weight), [tvm.runtime.empty(*spec) for spec in self.specs]
        llvm.function_of(self.code, FUNCTION)(weight_tensor, *packed)
        return [weight_tensor, *packed] if self.keeps_weight else packed


FUNCTION = "packing"
"""The name of the function in the code."""


def split_packing(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Packing | None]:
    """Return a kernel that reads the packed weight, and the function that packs it; None where no stage packs it.

    All stages that read the weight alone move to that function, such as the offsets of integers with a zero point, and
    the conversion of a bfloat16 weight to float32 before it is packed.

    Before: `def kernel(x, w, output): for ...: packed[...] = w[...]; for ...: output[...] = ... packed[...]`.
    After: `def kernel(x, packed, output): for ...: output[...] = ... packed[...]`.
    """
    root, weight = func.body.block, func.params[1]
    passed_on = passed_between_statements(root)
    known, stages, others = [weight], list[tirx.Stmt](), list[tirx.Stmt]()
    for step in statements_of(root):
        used = _used(step, [*func.params, *passed_on])
        new = _without(used, known)
        if len(new) == 1 < len(used) and not _without(new, passed_on):
            known += new
            stages.append(step)
        else:
            others.append(step)
    if not stages:
        return func, None
    kernel, packing = tirx.stmt_seq(*others), tirx.stmt_seq(*stages)
    read = _used(kernel, known)
    from_packing = _without(read, [weight])
    is_shared = len(_without(from_packing, _stored(kernel))) < len(from_packing)
    if is_shared:  # a buffer that not all of its steps compute from the weight
        return func, None

    def function(params: Sequence[tvm.ir.Var], body: tirx.Stmt) -> tirx.PrimFunc:
        buffers = _without(_used(body, root.alloc_buffers), params)
        block = SBlock([], [], [], root.name_hint, body, alloc_buffers=buffers)
        return tirx.PrimFunc(params, SBlockRealize([], True, block), func.ret_type, attrs=func.attrs)

    code, specs = _compiled(function([weight, *from_packing], packing))
    kernel_params = [func.params[0], *read, *func.params[2:]]
    return function(kernel_params, kernel), Packing(code, specs, len(from_packing) < len(read))


def _without(items: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return the items that are none of the others."""
    return [each for each in items if not any(each.same_as(other) for other in others)]


def _used(step: tirx.Stmt, buffers: Sequence[tvm.ir.Var]) -> list[tvm.ir.Var]:
    """Return the buffers that a statement uses."""
    found: list[tvm.ir.Var] = []
    tvm_ffi.structural_walk(step, [(tvm.ir.Var, found.append)])
    return [buffer for buffer in buffers if any(buffer.same_as(each) for each in found)]


def _stored(step: tirx.Stmt) -> list[tvm.ir.Var]:
    """Return the buffers that a statement stores to."""
    blocks: list[SBlock] = []
    tvm_ffi.structural_walk(step, [(SBlock, blocks.append)])
    return [region.source for block in blocks for region in block.writes]


def _compiled(stages: tirx.PrimFunc) -> tuple[tvm.runtime.Module, list[tuple[list[int], str]]]:
    """Compile the stages for this machine's CPU; return the code, and the shape and dtype of each result.

    They run once for each layer: optimising takes about as long as it saves.
    """
    # Only the arguments that `specs` describes go in: TVM's checks of them are left out.
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        twin = lowering.build_twin_function(stages.with_attr("global_symbol", FUNCTION))
    return twin.executable.mod, [
        ([int(size) for size in each.ty.shape], str(each.ty.dtype)) for each in stages.params[1:]
    ]
