"""The weight laid out in blocks of output channels."""

from __future__ import annotations

from tvm import te, tirx

from ..workload import ConvWorkload


def packed_weight(w: te.Tensor, workload: ConvWorkload, block: int) -> te.Tensor:
    """The stage "packed": w (K, C / groups, R, S) as (K / block, C / groups, R, S, block), the last block with zeros.

    A block does not reach into another group: with more than one group it has to divide the channels of each.
    """
    blocks = -(-workload.out_channels // block)

    def value(b: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var, ki: tirx.Var) -> tirx.PrimExpr:
        k = b * block + ki
        element = w[k, c, r, s]
        if workload.out_channels % block == 0:
            return element
        return tirx.if_then_else(k < workload.out_channels, element, tirx.const(0, w.dtype))

    return te.compute((blocks, *workload.w_shape[1:], block), value, name="packed")
