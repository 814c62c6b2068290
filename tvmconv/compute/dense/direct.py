"""Direct convolution: `O[n, k, h, w] = sum over c, r, s of P[n, c, h*sh + r*dh, w*sw + s*dw] * F[k, c, r, s]`.

c runs over the C / groups input channels of the group that k belongs to.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from .tiles import Element, summed_in_tiles


def direct(workload: ConvWorkload, tile: tuple[int, int, int] = (1, 1, 1)) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "packed", "direct", "groups" where there are any, "output".

    Returns the operands in the order of `workload.operands`: x (N, C, H, W), w (K, C / groups, R, S), the epilogue's
    operands, and the output (N, K, Ho, Wo), x and output in the workload's layouts. Products are summed in float32.

    `tile` rounds the channels, rows and columns of "direct" up to whole tiles, so that a schedule that computes tile by
    tile needs no bounds test in its inner loops; input and weight read as zero there, and "output" leaves the surplus
    out. "packed" is the weight in blocks of the tile's channels, and "direct" has whole blocks for each group.
    """
    return summed_in_tiles(workload, tile, "direct", "rs", input_elements)


def input_elements(workload: ConvWorkload, padded: te.Tensor, height: int) -> Element:
    """Return an `Element` that reads the padded input directly; `height` is not used."""
    (sh, sw), (dh, dw) = workload.stride, workload.dilation

    def element(
        n: tirx.PrimExpr, c: tirx.PrimExpr, h: tirx.PrimExpr, v: tirx.PrimExpr, r: tirx.Var, s: tirx.Var
    ) -> tirx.PrimExpr:
        return padded[workload.x_layout.memory_index(n, c, h * sh + r * dh, v * sw + s * dw)]

    return element
