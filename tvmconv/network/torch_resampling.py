"""Interpolation of torch in Relax, with indices and weights that torch's own operators compute."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..dtypes import NARROW
from .constants import Array
from .resampling import SAMPLE, interpolate, linear_taps, repeat

OPERATORS = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
)  # fmt: skip
"""Torch's operators that resample images of (batch, channels, *size), where it has them."""

LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
"""The operators that interpolate linearly, without smoothing."""

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
    dtype, is_linear = str(x.ty.dtype), name in LINEAR and not any(align)
    if narrow := not is_nearest(name) and dtype in NARROW:
        x = builder.emit(relax.op.astype(x, "float32"))
    for place, (size, target, scale) in enumerate(zip(sizes, wanted, scales, strict=True)):
        times = target // size
        if target == times * size and scale in (None, times) and (is_nearest(name) or is_linear):
            taps = _repeated(times, is_linear)
            x = x if times == 1 else repeat(builder, x, 2 + place, times, *taps)
            continue
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
    return builder.emit(relax.op.astype(x, dtype)) if narrow else x


def _repeated(times: int, is_linear: bool) -> tuple[Array, Array]:
    """Return places and weights, (outputs, taps), of so many outputs for each of `SAMPLE` inputs."""
    at = (np.arange(SAMPLE * times) + 0.5) / times - 0.5
    if is_linear:
        return linear_taps(at, times, antialias=False)
    nearest = np.arange(SAMPLE * times)[:, None] // times
    return nearest, np.ones_like(nearest)


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
    return interpolate(builder, x, axis, places.T, np.take_along_axis(weights, places, axis=0).T)
