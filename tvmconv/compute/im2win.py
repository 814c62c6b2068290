"""Convolution over windows laid out ahead, as the im2win thesis has it.

The transform `I[n, c, h, x*R + r] = P[n, c, h*sh + r*dh, x]` puts the columns of the R rows that an output row reads
behind one another. A window of S columns is then contiguous, and the next one begins `sw * R` further, for non-square
kernels too: `O[n, k, h, w] = sum over c, s, r of I[n, c, h, (w*sw + s*dw)*R + r] * F[k, c, r, s]`.
"""

from __future__ import annotations

from tvm import te, tirx

from ..workload import ConvWorkload
from .epilogue import epilogue, epilogue_operands
from .packing import in_groups, packed_weight
from .padding import padded_input


def im2win(workload: ConvWorkload, tile: tuple[int, int, int] = (1, 1, 1)) -> list[te.Tensor]:
    """The TE definition, in the stages "pad", "windows", "packed", "im2win", "groups" where there are any, "output".

    Operands, result and `tile` are as for `direct`. "windows" is the transform, (N, C, Ho, W, R), where W counts padded
    columns: a column's R elements are one dimension, in the same place in memory as `x*R + r`. With kernel height and
    stride alike it is as large as the input, else R / sh times that.
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

    def window(n: tirx.Var, c: tirx.Var, h: tirx.Var, v: tirx.Var, r: tirx.Var) -> tirx.PrimExpr:
        return padded[n, c, h * sh + r * dh, v]

    shape = (workload.batch, workload.in_channels, height, padded.shape[3], workload.kernel[0])
    windows = te.compute(shape, window, name="windows")
    c = te.reduce_axis((0, workload.in_channels // workload.groups), name="c")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        channel = c if workload.groups == 1 else k // (channels // workload.groups) * w.shape[1] + c
        element = windows[n, channel, h, v * sw + s * dw, r].astype("float32")
        return te.sum(element * packed[k // block, c, r, s, k % block].astype("float32"), axis=[c, s, r])

    sums = (workload.batch, channels, height, width)
    accumulated = te.compute(sums, accumulate, name="im2win")
    return [x, w, *operands.values(), epilogue(in_groups(accumulated, workload), workload, operands)]
