"""Interpolation of torch in Relax, with indices and weights that torch's own operators compute."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from tvm import relax

OPERATORS = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
)  # fmt: skip
"""Torch's operators that resample images of (batch, channels, *size), where it has them."""

METHODS = {"upsample_nearest2d": "nearest_neighbor", "upsample_bilinear2d": "linear"}
"""Relax's names for the operators that it computes faster by itself."""

TAPS = 4
"""The largest number of elements along an axis to look up and add one by one; more make a matrix product."""


def is_nearest(name: str) -> bool:
    return "nearest" in name


def resample(builder: relax.BlockBuilder, x: relax.Expr, name: str, node: torch.fx.Node) -> relax.Expr:
    """Return what the node, an operator of this name, computes from x.

    Operators that take the nearest elements work in any dtype, the others in float32 and float64.
    """
    sizes, wanted = (list(value.meta["val"].shape[2:]) for value in (node.args[0], node))
    if not all(isinstance(size, int) for size in (*sizes, *wanted)):
        raise ValueError("sizes of images have to be known")
    if not is_nearest(name) and not node.meta["val"].is_floating_point():
        raise ValueError(f"images of {x.ty.dtype} are only repeated")
    given = list(node.args[1:])
    align = [] if is_nearest(name) else [given[1]]
    scales = list(given[1 + len(align) :])
    if node.target._overloadname == "vec":
        scales = list(scales[0]) if scales and scales[0] is not None else []
    scales += [None] * (len(sizes) - len(scales))
    if name in METHODS and all(map(_is_read_right, [name] * 2, sizes, wanted, scales)):
        corners = "align_corners" if align and align[0] else "half_pixel"
        return relax.op.image.resize2d(
            x, wanted, layout="NCHW", method=METHODS[name], coordinate_transformation_mode=corners
        )
    for place, (size, target, scale) in enumerate(zip(sizes, wanted, scales, strict=True)):
        factors = [scale if axis == place else None for axis in range(len(sizes))]
        applied = partial(_applied, name, place, len(sizes), target, align, factors)
        if is_nearest(name):
            indices = applied(torch.arange(size, dtype=torch.float32)[None])[0].numpy().astype("int64")
            if not np.array_equal(indices, np.arange(size)):
                x = builder.emit(relax.op.take(x, relax.const(indices, "int64"), axis=2 + place))
        else:
            x = _weighted(
                builder, x, 2 + place, applied(torch.eye(size, dtype=getattr(torch, str(x.ty.dtype)))).numpy()
            )
    return x


def _is_read_right(name: str, size: int, target: int, scale: float | None) -> bool:
    """Return whether Relax, which uses only the sizes and rounds to the nearest, reads the same elements as torch."""
    return (scale is None or scale * size == target) and (not is_nearest(name) or target % size == 0)


def _applied(
    name: str, place: int, rank: int, target: int, align: list[bool], factors: list[float | None], lines: torch.Tensor
) -> Any:
    """Apply torch's operator along one axis to lines (count, size).

    Along the other axes each line is there twice: torch itself is wrong for smoothing operators on images of one
    column.
    """
    image = lines.reshape(len(lines), 1, *(-1 if axis == place else 1 for axis in range(rank)))
    image = image.expand(-1, -1, *(-1 if axis == place else 2 for axis in range(rank))).contiguous()
    operator = getattr(torch.ops.aten, name).default
    result = operator(image, [target if axis == place else 2 for axis in range(rank)], *align, *factors)
    return result.movedim(2 + place, 1).reshape(len(lines), target, -1)[:, :, 0].contiguous()


def _weighted(builder: relax.BlockBuilder, x: relax.Expr, axis: int, weights: np.ndarray[Any, Any]) -> relax.Expr:
    """Return sums of x along an axis with weights (size, target)."""
    size, target = weights.shape
    if size == target and np.array_equal(weights, np.eye(size)):
        return x
    taps = int((weights != 0).sum(axis=0).max())
    if taps > TAPS:
        rank = x.ty.ndim
        order = [*(each for each in range(rank) if each != axis), axis]
        product = relax.op.matmul(
            builder.emit(relax.op.permute_dims(x, order)), relax.const(np.ascontiguousarray(weights))
        )
        return builder.emit(relax.op.permute_dims(builder.emit(product), [int(i) for i in np.argsort(order)]))
    places = np.argsort(weights == 0, axis=0, kind="stable")[:taps]
    column = [-1 if each == axis else 1 for each in range(x.ty.ndim)]
    total = None
    for indices in places:
        factors = relax.const(weights[indices, np.arange(target)].reshape(column))
        taken = builder.emit(relax.op.take(x, relax.const(indices, "int64"), axis=axis))
        term = builder.emit(relax.op.multiply(taken, factors))
        total = term if total is None else builder.emit(relax.op.add(total, term))
    return total
