"""Zero padding, the stage in front of every convolution."""

from __future__ import annotations

from tvm import te, tirx

from ..workload import ConvWorkload


def padded_input(x: te.Tensor, workload: ConvWorkload, output_size: tuple[int, int]) -> te.Tensor:
    """The stage "pad": x with zeros around it, as many rows and columns as `output_size` outputs read.

    Schedules inline it where the input is staged, so that no padded tensor is ever stored. x has shape (N, C, H, W).
    An `output_size` beyond the workload's makes the stage read as zero there too. Rows and columns come in whole
    strides, so that a schedule can lay them out by their phase.
    """
    top, left, _, _ = workload.padding
    height, width = (
        -(-((outputs - 1) * stride + window) // stride) * stride
        for outputs, stride, window in zip(output_size, workload.stride, workload.window, strict=True)
    )

    def value(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var) -> tirx.PrimExpr:
        tests = []
        if top:
            tests.append(h >= top)
        if height - top > workload.height:
            tests.append(h - top < workload.height)
        if left:
            tests.append(w >= left)
        if width - left > workload.width:
            tests.append(w - left < workload.width)
        element = x[n, c, h - top, w - left]
        return tirx.if_then_else(tirx.all(*tests), element, tirx.const(0, x.dtype)) if tests else element

    return te.compute((workload.batch, workload.in_channels, height, width), value, name="pad")
