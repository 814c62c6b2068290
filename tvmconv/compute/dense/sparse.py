"""The direct convolution as sparse templates compute it: every output channel may read every input channel.

Groups, depthwise convolutions among them, are zeros of the weight like any others, so one definition does for all.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..padding import padded_input


def sparse(workload: ConvWorkload, tile: tuple[int, int] = (1, 1)) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "sparse" and "output".

    Returns x (N, C, H, W), w (K, C, R, S) in float32 whatever the groups are, what the epilogue reads, and the output
    (N, K, Ho, Wo). `tile` rounds the rows and columns of "sparse" up to whole tiles; "output" leaves the surplus out.
    """
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder((workload.out_channels, workload.in_channels, *workload.kernel), "float32", name="w")
    operands = epilogue_operands(workload)
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    height, width = (-(-size // step) * step for size, step in zip(workload.output_size, tile, strict=True))
    padded, _ = padded_input(x, workload, (height, width))
    c = te.reduce_axis((0, workload.in_channels), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        element = padded[n, c, h * sh + r * dh, v * sw + s * dw].astype("float32")
        return te.sum(element * w[k, c, r, s], axis=[c, r, s])

    accumulated = te.compute((workload.batch, workload.out_channels, height, width), accumulate, name="sparse")
    return [x, w, *operands.values(), epilogue(accumulated, workload, operands)]
