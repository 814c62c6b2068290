"""Direct convolution: `O[n, k, h, w] = sum over c, r, s of P[n, c, h*sh + r*dh, w*sw + s*dw] * F[k, c, r, s]`.

c runs over the C / groups input channels of the group that k belongs to.
"""

from __future__ import annotations

from tvm import te, tirx

from ..workload import ConvWorkload
from .epilogue import epilogue, epilogue_operands
from .packing import in_groups, packed_weight
from .padding import padded_input


def direct(workload: ConvWorkload, tile: tuple[int, int, int] = (1, 1, 1)) -> list[te.Tensor]:
    """The TE definition, in the stages "pad", "packed", "direct", "groups" where there are any, "output".

    Returns the operands in the order of `workload.operands`: x (N, C, H, W), w (K, C / groups, R, S), what the epilogue
    reads, and the output (N, K, Ho, Wo). Products are summed in float32.

    `tile` rounds the channels, rows and columns of "direct" up to whole tiles, so that a schedule that computes tile by
    tile needs no bounds test in its inner loops; input and weight read as zero there, and "output" leaves the surplus
    out. "packed" is the weight in blocks of the tile's channels, and "direct" has whole blocks for each group.
    """
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    operands = epilogue_operands(workload)
    block, *rows_columns = tile
    height, width = (-(-size // step) * step for size, step in zip(workload.output_size, rows_columns, strict=True))
    padded, _ = padded_input(x, workload, (height, width))
    packed = packed_weight(w, workload, block)
    channels = int(packed.shape[0]) * block
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    c = te.reduce_axis((0, workload.in_channels // workload.groups), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        channel = c if workload.groups == 1 else k // (channels // workload.groups) * w.shape[1] + c
        element = padded[n, channel, h * sh + r * dh, v * sw + s * dw].astype("float32")
        return te.sum(element * packed[k // block, c, r, s, k % block].astype("float32"), axis=[c, r, s])

    shape = (workload.batch, channels, height, width)
    accumulated = te.compute(shape, accumulate, name="direct")
    return [x, w, *operands.values(), epilogue(in_groups(accumulated, workload), workload, operands)]
