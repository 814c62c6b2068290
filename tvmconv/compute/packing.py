"""Stages that lay the weight out in blocks of output channels, and the results in groups of them."""

from __future__ import annotations

from tvm import te, tirx

from ..workload import ConvWorkload


def packed_weight(w: te.Tensor, workload: ConvWorkload, block: int, depth: int | None = None) -> te.Tensor:
    """Return the stage "packed": w (K, C / groups, R, S) as (blocks, depth, R, S, block).

    The depth is C / groups or more. A block does not reach into another group: the last one of each is filled up with
    zeros, and so is the depth.
    """
    channels, own_depth = workload.multiplier, workload.w_shape[1]
    depth = own_depth if depth is None else depth
    blocks = -(-channels // block)

    def value(b: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var, ki: tirx.Var) -> tirx.PrimExpr:
        q = b % blocks * block + ki
        k = b * block + ki if channels % block == 0 else b // blocks * channels + q
        tests = ([] if channels % block == 0 else [q < channels]) + ([] if depth == own_depth else [c < own_depth])
        return tirx.if_then_else(tirx.all(*tests), w[k, c, r, s], tirx.const(0, w.dtype)) if tests else w[k, c, r, s]

    return te.compute((workload.groups * blocks, depth, *workload.kernel, block), value, name="packed")


def in_groups(accumulated: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Return the stage "groups": sums (N, K', H, W) with whole blocks as (N, groups, K / groups, H, W).

    With one group it is not there, and the sums are what they were.
    """
    if workload.groups == 1:
        return accumulated
    batch, rounded, *size = accumulated.shape
    channels = rounded // workload.groups

    def value(n: tirx.Var, g: tirx.Var, q: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        return accumulated[n, g * channels + q, h, v]

    return te.compute((batch, workload.groups, workload.multiplier, *size), value, name="groups")
