"""Convolution over windows laid out ahead, as the im2win thesis has it.

The transform `I[n, c, h, x*R + r] = P[n, c, h*sh + r*dh, x]` puts the columns of the R rows that an output row reads
behind one another. A window of S columns is then contiguous, and the next one begins `sw * R` further, for non-square
kernels too: `O[n, k, h, w] = sum over c, s, r of I[n, c, h, (w*sw + s*dw)*R + r] * F[k, c, r, s]`.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from .tiles import Element, summed_in_tiles


def im2win(workload: ConvWorkload, tile: tuple[int, int, int] = (1, 1, 1)) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "windows", "packed", "im2win", "output" and, if any, "groups".

    Operands, result and `tile` are as for `direct`. "windows" is the transform, (N, C, Ho, W, R), where W counts padded
    columns: a column's R elements are one dimension, at the address of `x*R + r`. With kernel height and
    stride alike it is as large as the input, else R / sh times that.
    """
    return summed_in_tiles(workload, tile, "im2win", "sr", window_elements)


def window_elements(workload: ConvWorkload, padded: te.Tensor, height: int) -> Element:
    """Return an `Element` that reads the stage "windows", which is defined here for `height` rows of output."""
    (sh, sw), (dh, dw) = workload.stride, workload.dilation

    def window(n: tirx.Var, c: tirx.Var, h: tirx.Var, v: tirx.Var, r: tirx.Var) -> tirx.PrimExpr:
        return padded[n, c, h * sh + r * dh, v]

    shape = (workload.batch, workload.in_channels, height, padded.shape[3], workload.kernel[0])
    windows = te.compute(shape, window, name="windows")

    def element(
        n: tirx.PrimExpr, c: tirx.PrimExpr, h: tirx.PrimExpr, v: tirx.PrimExpr, r: tirx.Var, s: tirx.Var
    ) -> tirx.PrimExpr:
        return windows[n, c, h, v * sw + s * dw, r]

    return element
