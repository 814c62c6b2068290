"""Interpolation of torch in Relax, with indices and weights that torch's own operators compute.

Where a size is open, formulas compute them when the model runs, in the steps and in the dtype of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from tvm import relax, tirx

from tvmconv.problem.dtypes import NARROW

from ...graph.constants import Array, sizes_of
from ...sizes.facts import Size, product
from ..builder import ImportBuilder
from ..resampling import SAMPLE, by_formula, cubic_kernel, cubic_weights, interpolate, linear_taps, repeat, smoothed
from .types import base_name

OPERATORS = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
)  # fmt: skip
"""Torch's operators that resample images of (batch, channels, *size), where it has them."""

CUBIC, CUBIC_SMOOTH = -0.75, -0.5
"""The coefficients of torch's cubic convolution, without and with `antialias`."""

LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
"""The operators that interpolate linearly, without smoothing."""

TAPS = 4
"""The largest number of elements along an axis to look up and add one by one; more make a matrix product."""


def is_nearest(name: str) -> bool:
    return "nearest" in name


def resample(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, sizes: Sequence[Size], value: Callable[[Any], Any]
) -> relax.Expr:
    """Return what the node computes from x; `sizes` are those of its result, `value` returns what an argument is.

    Operators that take the nearest elements work in any dtype, the others in float32 and float64.
    """
    name, before = base_name(node), (sizes_of(x.ty) or ())[2:]
    if len(before) != len(sizes):
        raise ValueError("the shape of its input is known only when the model runs")
    if not is_nearest(name) and not node.meta["val"].is_floating_point():
        raise ValueError(f"images of {x.ty.dtype} are only repeated")
    given = [value(argument) for argument in node.args[1:]]
    align = [] if is_nearest(name) else [given[1]]
    scales = list(given[1 + len(align) :])
    if node.target._overloadname == "vec":
        scales = list(scales[0]) if scales and scales[0] is not None else []
    scales += [None] * (len(sizes) - len(scales))
    dtype, is_linear = str(x.ty.dtype), name in LINEAR and not any(align)
    if narrow := not is_nearest(name) and dtype in NARROW:
        x = builder.emit(relax.op.astype(x, "float32"))
    for place, (size, target, scale) in enumerate(zip(before, sizes, scales, strict=True)):
        times = builder.facts.quotient([target], [size])
        if (
            isinstance(times, int)
            and times > 0
            and builder.facts.are_equal(target, product([size, times]))
            and scale in (None, times)
            and (is_nearest(name) or is_linear)
        ):
            taps = _repeated(times, is_linear)
            x = x if times == 1 else repeat(builder, x, 2 + place, times, *taps)
        elif isinstance(size, int) and isinstance(target, int) and (scale is None or isinstance(scale, float)):
            x = _by_table(builder, x, name, place, len(sizes), target, align, scale)
        else:
            x = _by_formula(builder, x, name, 2 + place, target, any(align), scale)
    return builder.emit(relax.op.astype(x, dtype)) if narrow else x


def _by_table(
    builder: ImportBuilder,
    x: relax.Expr,
    name: str,
    place: int,
    rank: int,
    target: int,
    align: list[bool],
    scale: float | None,
) -> relax.Expr:
    """Return x resampled along one of `rank` axes whose size is a number."""
    size = int(x.ty.shape[2 + place])
    factors = [scale if axis == place else None for axis in range(rank)]
    applied = partial(_applied, name, place, rank, target, align, factors)
    if not is_nearest(name):
        weights = applied(torch.eye(size, dtype=getattr(torch, str(x.ty.dtype)))).numpy()
        return _weighted(builder, x, 2 + place, weights)
    indices = applied(torch.arange(size, dtype=torch.float32)[None])[0].numpy().astype("int64")
    if np.array_equal(indices, np.arange(size)):
        return x
    return builder.emit(relax.op.take(x, relax.const(indices, "int64"), axis=2 + place))


def _by_formula(
    builder: ImportBuilder, x: relax.Expr, name: str, axis: int, target: Size, align: bool, scale: Any
) -> relax.Expr:
    """Return x resampled along an axis of any size.

    The formulas are those of `aten/src/ATen/native/UpSample.h` and `cpu/UpSampleKernel.cpp` in torch.
    """
    if "lanczos" in name:
        raise ValueError("the size of images that are resampled by Lanczos' kernel has to be known")
    numbers = [] if scale is None or align else [scale]
    places = _Places("float64" if str(x.ty.dtype) == "float64" and not is_nearest(name) else "float32", align)
    if name.endswith("_aa"):
        return smoothed(builder, x, axis, target, partial(places.smooth, "cubic" in name), *numbers)
    if is_nearest(name):
        return by_formula(builder, x, axis, target, partial(places.nearest, "exact" in name), *numbers)
    return by_formula(builder, x, axis, target, places.cubic if "cubic" in name else places.linear, *numbers)


@dataclass(frozen=True)
class _Places:
    """The elements that torch makes each output of, along an axis of any size.

    Each method takes the index of an output, the sizes of input and output, and perhaps the number of outputs for each
    input.
    """

    dtype: str
    """The dtype that torch computes coordinates in."""
    align: bool
    """True if the centers of the elements at the ends have the same coordinates in input and output."""

    def number(self, value: Any) -> tirx.Expr:
        return tirx.const(float(value), self.dtype) if isinstance(value, (int, float)) else value.astype(self.dtype)

    def step(self, size: tirx.Expr, outputs: tirx.Expr, scale: Any = None) -> tirx.Expr:
        """Return the number of inputs for each output."""
        if self.align:
            # TVM looks for bounds of numbers, and fails for a quotient of two sizes alone.
            return tirx.max(self.number(size - 1) / self.number(tirx.max(outputs - 1, 1)), self.number(0))
        if scale is None:
            return self.number(size) / self.number(outputs)
        return self.number(1 / scale if isinstance(scale, float) else tirx.const(1.0, "float64") / scale)

    def center(self, output: tirx.Expr, *sizes: Any) -> tirx.Expr:
        step, half = self.step(*sizes), self.number(0.5)
        return step * self.number(output) if self.align else step * (self.number(output) + half) - half

    def nearest(self, exact: bool, output: tirx.Expr, *sizes: Any) -> list[tuple[tirx.Expr, None]]:
        at = (self.number(output) + self.number(0.5 if exact else 0.0)) * self.step(*sizes)
        return [(tirx.floor(at).astype("int64"), None)]

    def linear(self, output: tirx.Expr, *sizes: Any) -> list[tuple[tirx.Expr, tirx.Expr]]:
        at = tirx.max(self.center(output, *sizes), self.number(0))
        left = tirx.floor(at)
        index = left.astype("int64")
        return [(index, self.number(1) - (at - left)), (index + 1, at - left)]

    def cubic(self, output: tirx.Expr, *sizes: Any) -> list[tuple[tirx.Expr, tirx.Expr]]:
        at = self.center(output, *sizes)
        left = tirx.floor(at)
        index = left.astype("int64")
        return [(index + i - 1, weight) for i, weight in enumerate(cubic_weights(at - left, CUBIC))]

    def smooth(
        self, cubic: bool, output: tirx.Expr, *sizes: Any
    ) -> tuple[tirx.Expr, tirx.Expr, Callable[[tirx.Expr], tirx.Expr]]:
        """Return the first element, the largest number of elements, and a function that returns their weights."""
        step, half = self.step(*sizes), self.number(0.5)
        width = tirx.max(step, self.number(1))
        support = self.number(2 if cubic else 1) * width
        middle = step * (self.number(output) + half)
        first, end = (tirx.trunc(middle + reach + half).astype("int64") for reach in (-support, support))

        def weight(index: tirx.Expr) -> tirx.Expr:
            distance = tirx.abs((self.number(index) - middle + half) / width)
            near = (
                cubic_kernel(distance, CUBIC_SMOOTH) if cubic else tirx.max(self.number(1) - distance, self.number(0))
            )
            return tirx.if_then_else(index < end, near, self.number(0))

        return first, 2 * tirx.ceil(support).astype("int64") + 1, weight


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
