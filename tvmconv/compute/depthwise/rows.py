"""Depthwise convolution row by row of the input: each row is added to all outputs of a tile that it is a term of.

`O[n, t * T + y, w, k] = sum over i, s of P[n, t * T * sh + i, w * sw + s * dw, k] * F[k, r, s]`, where T is the rows of
a tile, i a row that it reads, and r the row of the kernel with `i = y * sh + r * dh`, if there is one.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import in_tiles
from ..padding import nearest_input


def depthwise_rows(workload: ConvWorkload, tile: tuple[int, int], thread: tuple[int, int]) -> list[te.Tensor]:
    """Return the TE definition, in the stages "nearest", "wide", "pad", "taps", "depthwise", "sums" and "output".

    Returns the operands in the order of `workload.operands`; x and the output are in NHWC, and there is one output
    channel for each of the input. The first three stages are those of `nearest_input`, and "taps" is the weight as (R,
    S, K) in the type of sums. `tile` rounds the rows and columns of "depthwise" up to whole tiles, as in `depthwise`;
    `thread` of them, which divide the tile's, are computed from one pass over the rows of the input. Where those are
    all rows, or all columns, products of zeros around the input are left out.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.storage.weight, name="w")
    operands, sums = epilogue_operands(workload), workload.storage.sums
    height, width = (in_tiles(size, step) for size, step in zip(workload.output_size, tile, strict=True))
    padded = nearest_input(x, workload, (height, width))
    (sh, sw), (dh, dw), kernel = workload.stride, workload.dilation, workload.kernel
    (rows, columns), (top, left, *_) = thread, workload.padding
    taps = te.compute((*kernel, workload.out_channels), lambda r, s, k: w[k, 0, r, s].astype(sums), name="taps")
    i = te.reduce_axis((0, workload.read_by((rows, 1))[0]), name="i")
    s = te.reduce_axis((0, kernel[1]), name="s")

    def accumulate(n: tirx.Var, t: tirx.Var, y: tirx.Var, v: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        below = i - y * sh
        product = padded[n, t * (rows * sh) + i, v * sw + s * dw, k] * taps[below // dh, s, k]
        tests = [below >= 0, below < kernel[0] * dh, below % dh == 0]
        if workload.output_size[0] == rows:
            tests += [i >= top, i < top + workload.height]
        if workload.output_size[1] == columns:
            tests += [v * sw + s * dw >= left, v * sw + s * dw < left + workload.width]
        return te.sum(tirx.if_then_else(tirx.all(*tests), product, tirx.const(0, sums)), axis=[i, s])

    shape = (workload.batch, height // rows, rows, width, workload.out_channels)
    accumulated = te.compute(shape, accumulate, name="depthwise")
    planes = te.compute(
        (workload.batch, workload.out_channels, height, width),
        lambda n, k, h, v: accumulated[n, h // rows, h % rows, v, k],
        name="sums",
    )
    return [x, w, *operands.values(), epilogue(planes, workload, operands)]
