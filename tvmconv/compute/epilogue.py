"""The epilogue: what happens to an accumulated output before it is stored."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ..workload import ConvWorkload


def epilogue_operands(workload: ConvWorkload) -> dict[str, te.Tensor]:
    """Placeholders for the vectors that the epilogue reads, (K,) in float32."""
    wanted = {"scale": workload.epilogue.scale, "shift": workload.epilogue.shift}
    return {
        name: te.placeholder((workload.out_channels,), "float32", name=name)
        for name, is_used in wanted.items()
        if is_used
    }


def epilogue(accumulated: te.Tensor, workload: ConvWorkload, operands: dict[str, te.Tensor]) -> te.Tensor:
    """The stage "output": `clip(y * scale[k] + shift[k])` in float32, then cast to the workload's dtype.

    It has the workload's exact output shape, also where `accumulated` was rounded up to whole tiles.
    """

    def value(n: tirx.Var, k: tirx.Var, h: tirx.Var, w: tirx.Var) -> tirx.PrimExpr:
        y = accumulated[n, k, h, w]
        if "scale" in operands:
            y = y * operands["scale"][k]
        if "shift" in operands:
            y = y + operands["shift"][k]
        # Comparisons with the value on the left are false for NaN, so NaN passes through.
        if workload.epilogue.low is not None:
            low = tirx.const(workload.epilogue.low, "float32")
            y = tirx.Select(y < low, low, y)
        if workload.epilogue.high is not None:
            high = tirx.const(workload.epilogue.high, "float32")
            y = tirx.Select(y > high, high, y)
        return y.astype(workload.dtype)

    return te.compute(workload.output_shape, value, name="output")


def epilogue_reference(
    y: np.ndarray, workload: ConvWorkload, scale: np.ndarray | None = None, shift: np.ndarray | None = None
) -> np.ndarray:
    """The epilogue in float64 NumPy; y is (N, K, H, W), scale and shift are (K,)."""
    if scale is not None:
        y = y * scale.astype(np.float64)[:, None, None]
    if shift is not None:
        y = y + shift.astype(np.float64)[:, None, None]
    bounds = workload.epilogue
    if bounds.low is not None:
        y = np.where(y < bounds.low, bounds.low, y)
    if bounds.high is not None:
        y = np.where(y > bounds.high, bounds.high, y)
    return y
