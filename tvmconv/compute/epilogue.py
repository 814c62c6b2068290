"""The epilogue: the last operations on an accumulated output before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import msgspec
import numpy as np
from tvm import te, tirx

from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload

from .functions import ROUNDING, Float64, activated
from .open_sizes import COLUMNS, ROWS


def epilogue_operands(workload: ConvWorkload, along_pixels: bool = False) -> dict[str, te.Tensor]:
    """Return placeholders for the epilogue's operands: vectors (K,) in float32, and the residual, like the output.

    With `along_pixels` the vectors have a number for each pixel of a row instead.
    """
    pixels = (workload.output_size[1],)
    return {
        name: te.placeholder(pixels if along_pixels and name != "residual" else shape, dtype, name=name)
        for name, (shape, dtype) in workload.operands.items()
        if name in ("scale", "shift", "residual")
    }


def with_flat_pixels(workload: ConvWorkload) -> ConvWorkload:
    """Return a workload with the same output, whose pixels are one row for each image; in NHWC one row for all images.

    It is for the epilogue, which does not depend on how an output was computed.
    """
    batch, pixels = workload.batch, prod(workload.output_size)
    if workload.out_layout == "NHWC":
        batch, pixels = 1, batch * pixels
    return msgspec.structs.replace(
        workload,
        batch=batch,
        in_channels=workload.groups,
        layout="NCHW",
        w_layout="KCRS",
        height=1,
        width=pixels,
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def epilogue(
    accumulated: te.Tensor, workload: ConvWorkload, operands: dict[str, te.Tensor], along_pixels: bool = False
) -> te.Tensor:
    """Return the stage "output": `epilogue_value` of sums, (N, K, H, W) or (N, groups, K / groups, H, W).

    Vectors are (K,), or with `along_pixels` have a number for each pixel of a row in NCHW.
    """

    def value(y: tirx.PrimExpr, k: tirx.PrimExpr, index: Sequence[tirx.Var]) -> tirx.PrimExpr:
        vector = index[-1] if along_pixels else k
        indices = {name: tuple(index) if name == "residual" else (vector,) for name in operands}
        return epilogue_value(y, workload, {name: operands[name][indices[name]] for name in operands})

    return in_layout(accumulated, workload, value)


def in_layout(
    planes: te.Tensor,
    workload: ConvWorkload,
    value: Callable[[tirx.PrimExpr, tirx.PrimExpr, Sequence[tirx.Var]], tirx.PrimExpr] = lambda y, *_: y,
) -> te.Tensor:
    """Return the stage "output": `value(sum, channel, index in the output)` for each element of planes.

    It has the workload's exact shape and layout, also where the planes were rounded up to whole tiles; a height and a
    width that are known only when the kernel runs stay in whole tiles, and lowering cuts them off. The planes are (N,
    K, H, W) or (N, groups, K / groups, H, W).
    """

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        n, k, h, w = workload.output_layout.logical(*index)
        channel = (k,) if len(planes.shape) == 4 else (k // workload.multiplier, k % workload.multiplier)
        return value(planes(n, *channel, h, w), k, index)

    sizes = zip(workload.output_size, planes.shape[-2:], strict=True)
    size = (rounded if exact is ROWS or exact is COLUMNS else exact for exact, rounded in sizes)
    shape = workload.output_layout.shape((workload.batch, workload.out_channels, *size))
    return te.compute(shape, element, name="output")


def epilogue_value(y: tirx.PrimExpr, workload: ConvWorkload, operands: Mapping[str, tirx.PrimExpr]) -> tirx.PrimExpr:
    """Return a sum as it is stored: `activation(y * scale + shift + residual) * factor`, of operands that are given.

    It is computed in float32, then has the type of the workload's output. Sums in int32 that are the output are stored
    as they are.
    """
    output = workload.output_storage
    if output.name == workload.storage.sums == "int32":
        return y.astype("int32")
    y = y.astype("float32")
    if "scale" in operands:
        y = y * operands["scale"]
    if "shift" in operands:
        y = y + operands["shift"]
    if "residual" in operands:
        y = y + operands["residual"].astype("float32")
    y = activated(workload.epilogue, y, output.name in NARROW)
    if output.bounds is None:
        return y.astype(output.name)
    if workload.epilogue.factor is not msgspec.UNSET:
        y = y * tirx.const(workload.epilogue.factor, "float32")
    return rounded(y, output.name, output.bounds, zero_point_of(workload))


def rounded(y: tirx.PrimExpr, dtype: str, bounds: tuple[int, int], zero_point: int | tirx.PrimExpr) -> tirx.PrimExpr:
    """Return y rounded to the nearest integer, ties to even, plus the zero point, limited to the bounds of a type.

    The limits come first, since the bounds are integers themselves. After the addition of `ROUNDING`, or another even
    integer near it, the integer is in the last bits. The constant that is subtracted from these bits must not end with
    a byte of 0: LLVM 22 would take the byte from a vector of float32 as it is, and store four bytes instead of one. The
    integers here are below 2**21.
    """
    low, high = (tirx.const(bound, "int32") - zero_point for bound in bounds)
    y = tirx.min(tirx.max(y, low.astype("float32")), high.astype("float32"))  # NaN on its left is the other number
    rounding = np.float32(ROUNDING + (4 if isinstance(zero_point, int) and zero_point == 2 else 2))
    bits = tirx.reinterpret("int32", y + tirx.const(float(rounding), "float32"))
    integer = bits + (tirx.const(-int(rounding.view(np.int32)), "int32") + zero_point)
    return integer.astype(dtype)


def zero_point_of(workload: ConvWorkload) -> int:
    """Return the integer that stands for zero in the output."""
    given = workload.epilogue.zero_point
    return 0 if given is msgspec.UNSET else given


def rounded_reference(y: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """Return float64 results as an output of integers stores them: times the epilogue's factor, rounded and limited."""
    low, high = workload.output_storage.bounds or (-np.inf, np.inf)
    if workload.epilogue.factor is not msgspec.UNSET:
        y = y * workload.epilogue.factor
    return np.asarray(np.clip(np.rint(y) + zero_point_of(workload), low, high))


def epilogue_reference(
    y: np.ndarray,
    workload: ConvWorkload,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Apply the epilogue in float64 NumPy, except what `rounded_reference` does.

    y and residual are (N, K, H, W), scale and shift (K,).
    """
    if scale is not None:
        y = y * scale.astype(np.float64)[:, None, None]
    if shift is not None:
        y = y + shift.astype(np.float64)[:, None, None]
    if residual is not None:
        y = y + residual.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(workload.epilogue.activate(Float64(), y))
