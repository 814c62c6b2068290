"""The weight laid out in blocks of output channels, and the results in groups of them."""

from __future__ import annotations

from tvm import te, tirx

from ..workload import ConvWorkload


def packed_weight(w: te.Tensor, workload: ConvWorkload, block: int) -> te.Tensor:
    """The stage "packed": w (K, C / groups, R, S) as (blocks, C / groups, R, S, block).

    A block does not reach into another group: the last one of each is filled up with zeros.
    """
    channels = workload.multiplier
    blocks = -(-channels // block)

    def value(b: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var, ki: tirx.Var) -> tirx.PrimExpr:
        if channels % block == 0:
            return w[b * block + ki, c, r, s]
        q = b % blocks * block + ki
        return tirx.if_then_else(q < channels, w[b // blocks * channels + q, c, r, s], tirx.const(0, w.dtype))

    return te.compute((workload.groups * blocks, *workload.w_shape[1:], block), value, name="packed")


def in_groups(accumulated: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """The stage "groups": sums (N, K', H, W), with whole blocks for each group, as (N, groups, K / groups, H, W).

    With one group it is not there, and the sums are what they were.
    """
    if workload.groups == 1:
        return accumulated
    batch, rounded, *size = accumulated.shape
    channels = rounded // workload.groups

    def value(n: tirx.Var, g: tirx.Var, q: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        return accumulated[n, g * channels + q, h, v]

    return te.compute((batch, workload.groups, workload.multiplier, *size), value, name="groups")
