"""Converters of torch's interpolation.

The formulas are those of `aten/src/ATen/native/UpSample.h` and `cpu/UpSampleKernel.cpp` in torch, in its dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import relax, tirx

from ...graph.constants import sizes_of
from ...sizes.facts import Size, product
from ..builder import ImportBuilder
from ..shared.resampling import Arithmetic, Formula, Resampling, resampled
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


def resample(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, sizes: Sequence[Size], value: Callable[[Any], Any]
) -> relax.Expr:
    """Return what the node computes from x; `sizes` are those of its result, `value` returns what an argument is.

    Operators that take the nearest elements work in any dtype, the others in floating-point types.
    """
    name, before = base_name(node), (sizes_of(x.ty) or ())[2:]
    if len(before) != len(sizes):
        raise ValueError("the shape of its input is known only when the model runs")
    mode = next(mode for mode in ("nearest", "linear", "cubic", "lanczos") if mode in name)
    given = [value(argument) for argument in node.args[1:]]
    aligns = mode != "nearest" and bool(given[1])
    scales = list(given[1 if mode == "nearest" else 2 :])
    if node.target._overloadname == "vec":
        scales = list(scales[0]) if scales and scales[0] is not None else []
    scales += [None] * (len(sizes) - len(scales))
    is_smoothed = name.endswith("_aa")
    dtype = "float64" if str(x.ty.dtype) == "float64" and mode != "nearest" else "float32"
    steps = []
    for axis, (size, target, scale) in enumerate(zip(before, sizes, scales, strict=True), 2):
        is_known = isinstance(size, int) and isinstance(target, int)
        if mode == "lanczos" and not is_known:
            raise ValueError("the size of images that are resampled by Lanczos' kernel has to be known")
        times = builder.facts.quotient([target], [size])
        repeats = isinstance(times, int) and times > 0 and builder.facts.are_equal(target, product([size, times]))
        repeats = repeats and scale in (None, times) and not (aligns or is_smoothed or mode == "cubic")
        steps.append(
            Resampling(
                axis,
                target,
                mode,
                _exact(mode, times) if repeats else _coordinate(name, mode, aligns),
                step=_step(aligns) if is_smoothed else None,
                coefficient=CUBIC_SMOOTH if is_smoothed else CUBIC,
                excludes=is_smoothed,
                times=times if repeats else None,
                dtype=dtype,
                table_dtype=dtype,
                numbers=() if scale is None or aligns else (scale,),
            )
        )
    return resampled(builder, x, steps)


def _exact(mode: str, times: int) -> Formula:
    """Return the formula of coordinates where there are `times` outputs for each input."""

    def formula(arithmetic: Arithmetic, output: Any, *_: Any) -> Any:
        return output // times if mode == "nearest" else (output + 0.5) / times - 0.5

    return formula


def _coordinate(name: str, mode: str, aligns: bool) -> Formula:
    """Return the formula of an operator's coordinates; with `aligns` elements at the ends have the same in both."""

    def formula(arithmetic: Arithmetic, output: Any, *sizes: Any) -> Any:
        step, half = _step(aligns)(arithmetic, *sizes), arithmetic.number(0.5)
        if mode == "nearest":
            return (output + half) * step if "exact" in name else output * step
        if name.endswith("_aa"):
            return step * (output + half) - half
        at = step * output if aligns else step * (output + half) - half
        return arithmetic.larger(at, arithmetic.number(0)) if mode == "linear" else at

    return formula


def _step(aligns: bool) -> Formula:
    """Return the formula of the number of inputs for each output, from the sizes and perhaps a scale."""

    def formula(arithmetic: Arithmetic, size: Any, outputs: Any, scale: Any = None) -> Any:
        number = arithmetic.number
        if aligns:
            # TVM looks for bounds of numbers, and fails for a quotient of two sizes alone.
            others = max(outputs - 1, 1) if isinstance(outputs, int) else tirx.max(outputs - 1, 1)
            return arithmetic.larger(number(size - 1) / number(others), number(0))
        if scale is None:
            return number(size) / number(outputs)
        return number(1 / scale if isinstance(scale, float) else tirx.const(1.0, "float64") / scale)

    return formula
