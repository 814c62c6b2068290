"""Depthwise convolution: `O[n, c*M + q, h, w] = sum over r, s of P[n, c, h*sh + r*dh, w*sw + s*dw] * F[c, q, r, s]`.

The computation of the TVM depthwise tutorial, with its fused scale, shift and activation.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import in_tiles
from ..padding import nearest_input, padded_input

EXACT = 2**24
"""The number up to which float32 has every integer."""


def exact_type(workload: ConvWorkload) -> str:
    """Return the type that sums of integers are exact in: float32, whose multiply-adds are the fastest, or int32.

    A factor less its zero point is below 2^8, and a weight at most 2^7.
    """
    return "float32" if workload.terms * 2**15 <= EXACT else "int32"


def depthwise(workload: ConvWorkload, tile: tuple[int, int] = (1, 1), lanes: int = 1) -> list[te.Tensor]:
    """Return the TE definition, in three stages: "pad", "depthwise" and "output".

    Returns the operands in the order of `workload.operands`: x (N, C, H, W), w (C, M, R, S), the epilogue's
    operands, and the output (N, K, Ho, Wo), x and output in the workload's layouts. Products are summed in float32.
    Integers are in the type that `exact_type` says: x in "pad", less its zero point, and w in a stage "packed".

    `tile` rounds the rows and columns of "depthwise" up to whole tiles, so that a schedule that computes tile by tile
    needs no bounds test in its inner loops; the input reads as zero there, and "output" leaves the surplus out.
    `lanes` lays the columns of "pad" out in vectors, as `padded_input` says.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.storage.weight, name="w")
    exact = None if workload.storage.bounds is None else exact_type(workload)
    sum_type = exact or workload.storage.sums
    operands = epilogue_operands(workload)
    rounded = tuple(in_tiles(size, step) for size, step in zip(workload.output_size, tile, strict=True))
    padded, surplus = padded_input(x, workload, (rounded[0], rounded[1]), lanes, exact)
    taps = te.compute(w.shape, lambda *index: w[index].astype(exact), name="packed") if exact else w
    (sh, sw), (dh, dw), m, layout = workload.stride, workload.dilation, workload.multiplier, workload.x_layout
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        c, row, column = k // m, h * sh + r * dh, surplus + v * sw + s * dw
        index = (n, c, row, column // lanes, column % lanes) if lanes > 1 else layout.memory_index(n, c, row, column)
        element = padded[index]
        return te.sum(element.astype(sum_type) * taps[k // m, k % m, r, s].astype(sum_type), axis=[r, s])

    accumulated = te.compute((workload.batch, workload.out_channels, *rounded), accumulate, name="depthwise")
    return [x, w, *operands.values(), epilogue(accumulated, workload, operands)]


def depthwise_rows(workload: ConvWorkload, tile: tuple[int, int], thread: tuple[int, int]) -> list[te.Tensor]:
    """Return the TE definition, in the stages "nearest", "wide", "pad", "taps", "depthwise", "sums" and "output".

    Each row of the input is added to all outputs of a tile that it is a term of: `O[n, t * T + y, w, k] = sum over i, s
    of P[n, t * T * sh + i, w * sw + s * dw, k] * F[k, r, s]`, where T is the rows of a tile, i a row that it reads, and
    r the row of the kernel with `i = y * sh + r * dh`, if there is one.

    Returns the operands in the order of `workload.operands`; x and the output are in NHWC, and there is one output
    channel for each of the input. The first three stages are those of `nearest_input`, and "taps" is the weight as (R,
    S, K) in the type of sums. `tile` rounds the rows and columns of "depthwise" up to whole tiles, as in `depthwise`;
    `thread`, rows and columns that divide the tile's, are computed in one pass over the rows of the input. Where
    `thread` has all rows, or all columns, of the output, products with the zeros around the input are left out.
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
