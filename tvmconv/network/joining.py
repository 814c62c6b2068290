"""Concatenations that cost nothing: kernels write into the joined tensor."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir.stmt import MatchBufferRegion, SBlock, SBlockRealize

from ..lowering import is_scheduled
from .graph import Block, blocks_of, joined_by, operator_name, rebind


def join_outputs(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module without those concatenations of channels into which kernels can write their outputs.

    The parts of such a concatenation are outputs of kernels that nothing else reads. The first of the kernels gets
    memory for the whole result and writes its own channels; each one after it gets that tensor and writes its own in
    place. Concatenations of concatenations are one. A concatenation with any other part, such as an input, the result
    of pooling or of a sparse kernel, or the same tensor twice, stays as it is.

    Before: `a = R.call_tir(conv_0, (x,))`, `b = R.call_tir(conv_1, (x,))`, `y = R.concat((a, b), axis=1)`.
    After: `a = R.call_tir(conv_0_at_0_of_8, (x,))`, `y = R.call_tir_inplace(conv_1_at_4_of_8, (x, a))`.
    """
    builder = relax.BlockBuilder(mod)
    kernels: dict[str, relax.GlobalVar] = {}
    calls: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        joined: set[relax.Var] = set()
        # The outermost first: what is a part of it has nothing to join any more.
        for var in reversed(block.values):
            if (parts := _parts(var, block, mod)) is None or not joined.isdisjoint(parts):
                continue
            joined.update(parts)
            starts = dict(zip(parts, accumulate((int(part.ty.shape[1]) for part in parts), initial=0), strict=False))
            channels = int(var.ty.shape[1])
            last = None
            for part in [each for each in block.values if each in starts]:
                old, operands = block.values[part].args
                name = f"{old.name_hint}_at_{starts[part]}_of_{channels}"
                if name not in kernels:
                    kernels[name] = builder.add_func(_writing_into(mod[old], channels, starts[part]), name)
                    # What nothing calls any more is dropped, unless others could call it by its symbol.
                    builder.update_func(old, mod[old].without_attr("global_symbol"))
                if last is None:
                    calls[part] = relax.call_tir(kernels[name], operands, var.ty)
                else:
                    place = len(operands.fields)
                    calls[part] = relax.call_tir_inplace(kernels[name], [*operands.fields, last], place, var.ty)
                last = part
            calls[var] = calls.pop(last)
    return rebind(builder.get(), calls)


def _parts(var: relax.Var, block: Block, mod: tvm.IRModule) -> list[relax.Var] | None:
    """Return the kernels' outputs that a concatenation puts one behind the other; None if a part is anything else."""
    value = block.values[var]
    axis, tensors = joined_by(value)
    if axis != 1 or len(set(tensors)) < len(tensors):
        return None
    parts: list[relax.Var] = []
    for tensor in tensors:
        if block.only_reader(tensor) is None:
            return None
        inner = [tensor] if _is_output(tensor, block, mod) else _parts(tensor, block, mod)
        if inner is None:
            return None
        parts += inner
    return parts


def _is_output(var: relax.Var, block: Block, mod: tvm.IRModule) -> bool:
    """Return whether a variable is the output of a scheduled kernel."""
    value = block.values[var]
    return operator_name(value) == "relax.call_tir" and is_scheduled(mod[value.args[0]])


def _writing_into(func: tirx.PrimFunc, channels: int, start: int) -> tirx.PrimFunc:
    """Return the kernel, without a symbol, with its output in the channels from `start` on of a tensor of so many.

    Before: `def kernel(x, w, output): ...`.
    After: `def kernel(x, w, joined): output = T.match_buffer(joined[:, start : start + K]); ...`.
    """
    *inputs, output = func.params
    shape, dtype, alignment = list(output.ty.shape), output.ty.dtype, output.ty.data_alignment
    joined = tirx.decl_buffer([shape[0], channels, *shape[2:]], dtype, "joined", data_alignment=alignment)
    offset = start * prod(shape[2:])
    part = tirx.decl_buffer(shape, dtype, output.name, elem_offset=offset, data_alignment=alignment)
    ranges = [tvm.ir.Range.from_min_extent(start if axis == 1 else 0, size) for axis, size in enumerate(shape)]
    match = MatchBufferRegion(part, tirx.BufferRegion(joined, ranges))
    root = tvm_ffi.structural_map(func.body.block, (tvm.ir.Var, lambda var: part if var.same_as(output) else var))
    block = SBlock([], [], [], root.name_hint, root.body, alloc_buffers=root.alloc_buffers, match_buffers=[match])
    kernel = tirx.PrimFunc([*inputs, joined], SBlockRealize([], True, block), func.ret_type, attrs=func.attrs)
    return kernel.without_attr("global_symbol")
