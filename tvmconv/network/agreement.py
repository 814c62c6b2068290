"""Sizes that have to be equal when the model runs, though their expressions differ: half of a height, doubled again."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from .constants import same_size, sizes_of


def in_agreement(builder: relax.BlockBuilder, tensors: Sequence[relax.Expr], axis: int) -> list[relax.Expr]:
    """Return tensors to be joined along an axis with the same expressions for all other sizes.

    A reshaping, which copies nothing, gives those of one tensor to another; when the model runs it fails unless the
    number of elements is the same. (TVM 0.27 crashes on its `match_cast` here, in ConvertToDataflow.)

    Before: `x: (n, 8, h // 2 * 2)`, `y: (n, 8, h)`. After: `x = R.reshape(x, (n, 8, h))`, and `y` as it was.
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
        agreeing.append(builder.emit(relax.op.reshape(tensor, common)) if differs else tensor)
    return agreeing


def _length(size: int | tvm.tirx.PrimExpr) -> int:
    """Order numbers before expressions, and short expressions before long ones."""
    return 0 if isinstance(size, int) else len(str(size))
