"""Sizes that have to be equal when the model runs, though their expressions differ: half of a height, doubled again."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx, topi

from .constants import same_size, sizes_of
from .graph import blocks_of, operator_name

NAME = "in_agreement"
"""The beginning of the names of the functions that give a tensor the sizes of another."""


def in_agreement(builder: relax.BlockBuilder, tensors: Sequence[relax.Expr], axis: int) -> list[relax.Expr]:
    """Return tensors to be joined along an axis with the same expressions for all other sizes.

    A function that copies element by element, and is fused with others, gives a tensor the sizes of another: see
    `agreements`. (TVM 0.27 crashes on its own `match_cast`, in ConvertToDataflow and in FuseTIR.)

    Before: `x: (n, 8, h // 2 * 2)`, `y: (n, 8, h)`. After: `x = R.call_tir(in_agreement, (x,))`, of y's shape.
    """
    shapes = [sizes_of(each.ty) if isinstance(each.ty, relax.TensorType) else None for each in tensors]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(tensors) or len({len(shape) for shape in known}) != 1:
        return list(tensors)
    simplest = [min(sizes, key=_length) for sizes in zip(*known, strict=True)]
    agreeing = []
    for tensor, shape in zip(tensors, known, strict=True):
        place = axis % len(shape)
        common = [*simplest[:place], shape[place], *simplest[place + 1 :]]
        pairs = zip(shape, common, strict=True)
        differs = any(not isinstance(size, int) and not same_size(size, other) for size, other in pairs)
        agreeing.append(_of_sizes(builder, tensor, common) if differs else tensor)
    return agreeing


def _of_sizes(builder: relax.BlockBuilder, tensor: relax.Expr, sizes: Sequence[int | tvm.tirx.PrimExpr]) -> relax.Expr:
    def compute(x: te.Tensor, sizes: Sequence[tvm.tirx.PrimExpr]) -> te.Tensor:
        return te.compute(sizes, lambda *at: x(*at), tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, tensor, list(sizes), primfunc_name_hint=NAME)


def agreements(mod: tvm.IRModule) -> list[tuple[tirx.Expr, tirx.Expr]]:
    """Return the pairs of sizes that `in_agreement` takes for equal, which a network compares in each call."""
    pairs: list[tuple[tirx.Expr, tirx.Expr]] = []
    for block in blocks_of(mod):
        for value in block.values.values():
            if operator_name(value) == "relax.call_tir" and str(value.args[0].name_hint).startswith(NAME):
                pairs += zip(value.args[1].fields[0].ty.shape, value.ty.shape, strict=True)
    return [(given, expected) for given, expected in pairs if not same_size(given, expected)]


def _length(size: int | tvm.tirx.PrimExpr) -> int:
    """Order numbers before expressions, and short expressions before long ones."""
    return 0 if isinstance(size, int) else len(str(size))
