"""Depthwise convolution: `O[n, c*M + q, h, w] = sum over r, s of P[n, c, h*sh + r*dh, w*sw + s*dw] * F[c, q, r, s]`.

The computation of the TVM depthwise tutorial, with its fused scale, shift and activation.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import in_tiles
from ..padding import padded_input

EXACT = 2**24
"""The number up to which float32 has every integer."""


def exact_type(workload: ConvWorkload) -> str:
    """Return the type that sums of integers are exact in: float32, whose multiply-adds are the fastest, or int32.

    A factor less its zero point is below 2^8, and a weight at most 2^7.
    """
    return "float32" if workload.terms * 2**15 <= EXACT else "int32"


def depthwise(workload: ConvWorkload, tile: tuple[int, int] = (1, 1), lanes: int = 1) -> list[te.Tensor]:
    """Return the TE definition, in three stages: "pad", "depthwise" and "output".

    Returns the operands in the order of `workload.operands`: x (N, C, H, W), w (C, M, R, S), what the epilogue
    reads, and the output (N, K, Ho, Wo), x and output in the workload's layouts. Products are summed in float32.
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
    taps = te.compute(w.shape, lambda *place: w[place].astype(exact), name="packed") if exact else w
    (sh, sw), (dh, dw), m, layout = workload.stride, workload.dilation, workload.multiplier, workload.x_layout
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        c, row, column = k // m, h * sh + r * dh, surplus + v * sw + s * dw
        place = (n, c, row, column // lanes, column % lanes) if lanes > 1 else layout.place(n, c, row, column)
        element = padded[place]
        return te.sum(element.astype(sum_type) * taps[k // m, k % m, r, s].astype(sum_type), axis=[r, s])

    accumulated = te.compute((workload.batch, workload.out_channels, *rounded), accumulate, name="depthwise")
    return [x, w, *operands.values(), epilogue(accumulated, workload, operands)]
