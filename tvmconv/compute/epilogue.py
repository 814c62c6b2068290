"""The epilogue: the last operations on an accumulated output before it is stored."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ..workload import ConvWorkload
from .functions import Float64, activated


def epilogue_operands(workload: ConvWorkload) -> dict[str, te.Tensor]:
    """Return placeholders for the epilogue's operands: vectors (K,) in float32, and the residual, like the output."""
    return {
        name: te.placeholder(shape, dtype, name=name)
        for name, (shape, dtype) in workload.operands.items()
        if name in ("scale", "shift", "residual")
    }


def epilogue(accumulated: te.Tensor, workload: ConvWorkload, operands: dict[str, te.Tensor]) -> te.Tensor:
    """Return the stage "output": `activation(y * scale[k] + shift[k] + residual)` in float32, then cast.

    It has the workload's dtype, exact output shape and layout, also where `accumulated` was rounded up to whole tiles;
    a height and a width that are known only when the kernel runs stay in whole tiles, and lowering cuts them off.
    `accumulated` is (N, K, H, W) or (N, groups, K / groups, H, W).
    """

    def value(*place: tirx.Var) -> tirx.PrimExpr:
        n, k, h, w = workload.output_layout.logical(*place)
        channel = (k,) if len(accumulated.shape) == 4 else (k // workload.multiplier, k % workload.multiplier)
        inside = (n, *channel, h, w)
        y = accumulated[inside]
        if "scale" in operands:
            y = y * operands["scale"][k]
        if "shift" in operands:
            y = y + operands["shift"][k]
        if "residual" in operands:
            y = y + operands["residual"][place].astype("float32")
        return activated(workload.epilogue, y).astype(workload.dtype)

    sizes = zip(workload.output_size, accumulated.shape[-2:], strict=True)
    size = (exact if isinstance(exact, int) else rounded for exact, rounded in sizes)
    shape = workload.output_layout.shape((workload.batch, workload.out_channels, *size))
    return te.compute(shape, value, name="output")


def epilogue_reference(
    y: np.ndarray,
    workload: ConvWorkload,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Apply the epilogue in float64 NumPy; y and residual are (N, K, H, W), scale and shift are (K,)."""
    if scale is not None:
        y = y * scale.astype(np.float64)[:, None, None]
    if shift is not None:
        y = y + shift.astype(np.float64)[:, None, None]
    if residual is not None:
        y = y + residual.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(workload.epilogue.activate(Float64(), y))
