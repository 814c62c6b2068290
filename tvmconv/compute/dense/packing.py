"""Stages that lay the weight out in blocks of output channels, and the results in groups of them."""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload


def in_type(value: tirx.PrimExpr, dtype: str, out_dtype: str) -> tirx.PrimExpr:
    """Return an element in another type; bfloat16 in uint16 keeps its bits."""
    return (
        tirx.reinterpret(out_dtype, value) if dtype == "bfloat16" and out_dtype == "uint16" else value.astype(out_dtype)
    )


def packed_weight(
    w: te.Tensor, workload: ConvWorkload, block: int, depth: int | None = None, dtype: str | None = None
) -> te.Tensor:
    """Return the stage "packed": w in blocks of output channels, (blocks, depth, R, S, block).

    The depth is C / groups or more. A block has channels of one group: the last block of each group is filled up with
    zeros, and so is the depth. Elements are converted to `dtype`, where that is given.
    """
    channels, group_channels, dtype = workload.multiplier, workload.w_shape[1], dtype or w.dtype
    depth = group_channels if depth is None else depth
    blocks = -(-channels // block)

    def value(b: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var, ki: tirx.Var) -> tirx.PrimExpr:
        q = b % blocks * block + ki
        k = b * block + ki if channels % block == 0 else b // blocks * channels + q
        tests = ([] if channels % block == 0 else [q < channels]) + (
            [] if depth == group_channels else [c < group_channels]
        )
        weight = in_type(w[workload.weight_layout.memory_index(k, c, r, s)], w.dtype, dtype)
        return tirx.if_then_else(tirx.all(*tests), weight, tirx.const(0, dtype)) if tests else weight

    return te.compute((workload.groups * blocks, depth, *workload.kernel, block), value, name="packed")


def weighted_zero(w: te.Tensor, workload: ConvWorkload, zero: int) -> te.Tensor:
    """Return the stage "offsets", (K,): the sum of each filter's weights times `zero`."""
    c, r, s = (te.reduce_axis((0, extent), name=name) for name, extent in zip("crs", workload.w_shape[1:], strict=True))

    def product(k: tirx.Var) -> tirx.PrimExpr:
        weight = w[workload.weight_layout.memory_index(k, c, r, s)].astype(workload.storage.sums)
        return te.sum(weight * tirx.const(zero, workload.storage.sums), axis=[c, r, s])

    return te.compute((workload.out_channels,), product, name="offsets")


def in_groups(accumulated: te.Tensor, workload: ConvWorkload, offsets: te.Tensor | None = None) -> te.Tensor:
    """Return the stage "groups": sums (N, K', H, W), K' in whole blocks, as (N, groups, K / groups, H, W).

    Offsets (K,), where given, are subtracted. With one group there is no stage "groups": sums without offsets are
    returned as they are, and those with offsets are a stage "sums" (N, K, H, W).
    """
    if workload.groups == 1 and offsets is None:
        return accumulated
    batch, rounded, *size = accumulated.shape
    channels = rounded // workload.groups

    def value(n: tirx.Var, k: tirx.PrimExpr, rounded_k: tirx.PrimExpr, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        summed = accumulated[n, rounded_k, h, v]
        return summed if offsets is None else summed - offsets[k]

    if workload.groups == 1:
        shape = (batch, workload.out_channels, *size)
        return te.compute(shape, lambda n, k, h, v: value(n, k, k, h, v), name="sums")
    return te.compute(
        (batch, workload.groups, workload.multiplier, *size),
        lambda n, g, q, h, v: value(n, g * workload.multiplier + q, g * channels + q, h, v),
        name="groups",
    )
