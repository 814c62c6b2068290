"""Normalizations of groups and of instances, which add up squared distances from the mean, and softmax on a CPU.

TVM's own lowerings subtract the square of the mean from the mean of the squares: where numbers are large beside their
deviation, the difference loses all digits, or it is negative and its root NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax, te, tirx, topi


def group_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, groups: int, epsilon: float) -> te.Tensor:
    """Return x (batch, channels, *size) normalized in each image and group of channels, times gamma, plus beta."""
    batch, channels, *size = x.shape
    in_group = channels // groups
    grouped = topi.reshape(x, [batch, groups, in_group, *size])
    return topi.reshape(
        _normalized(grouped, (0, 1), gamma, beta, lambda at: at[1] * in_group + at[2], epsilon), x.shape
    )


def instance_norm(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, channel_axis: int, axes: Sequence[int], epsilon: float
) -> te.Tensor:
    """Return x normalized along some axes, times gamma and plus beta for each channel."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    return _normalized(x, kept, gamma, beta, lambda at: at[channel_axis], epsilon)


def _normalized(
    x: te.Tensor,
    kept: Sequence[int],
    gamma: te.Tensor,
    beta: te.Tensor,
    channel: Callable[[Sequence[tirx.Var]], tirx.PrimExpr],
    epsilon: float,
) -> te.Tensor:
    """Return x normalized along all axes but those kept; `channel` maps indices to the index in gamma and beta."""
    reduced = [axis for axis in range(len(x.shape)) if axis not in kept]
    outer, count = [x.shape[axis] for axis in kept], prod(x.shape[axis] for axis in reduced)

    def total(term: Callable[[Sequence[Any]], tirx.PrimExpr], name: str) -> te.Tensor:
        reduce_axes = [te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in reduced]

        def of_row(*row: tirx.Var) -> tirx.PrimExpr:
            index = dict(zip((*kept, *reduced), (*row, *reduce_axes), strict=True))
            return te.sum(term([index[axis] for axis in range(len(x.shape))]), axis=reduce_axes)

        return te.compute(outer, of_row, name=name)

    def centered(at: Sequence[Any]) -> tirx.PrimExpr:
        return x(*at) - mean(*(at[axis] for axis in kept))

    def scaled(*at: tirx.Var) -> tirx.PrimExpr:
        variance = squares(*(at[axis] for axis in kept)) / number
        return centered(at) * tirx.rsqrt(variance + tirx.const(epsilon, x.dtype)) * gamma(channel(at)) + beta(
            channel(at)
        )

    number = tirx.Cast(x.dtype, count)
    sums = total(lambda at: x(*at), "sums")
    mean = te.compute(outer, lambda *row: sums(*row) / number, name="means")
    squares = total(lambda at: centered(at) * centered(at), "squares")
    return te.compute(x.shape, scaled, name="normalized")


def softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """Return the softmax of float32 numbers along an axis, with one division for each sum.

    A product with the reciprocal of the sum is corrected by its remainder, and so rounded as the quotient would be. The
    sum is no less than 1, and finite, unless it is NaN.
    """
    count, outer = x.shape[axis], [size for index, size in enumerate(x.shape) if index != axis]
    k, j = (te.reduce_axis((0, count), name=name) for name in "kj")

    def row(at: Sequence[Any]) -> Sequence[Any]:
        return [*at[:axis], *at[axis + 1 :]]

    def element(row: Sequence[Any], index: Any) -> Sequence[Any]:
        return [*row[:axis], index, *row[axis:]]

    def share(*at: tirx.Var) -> tirx.PrimExpr:
        power, total = powers(*at), totals(*row(at))
        reciprocal = tirx.const(1, x.dtype) / total
        product = power * reciprocal
        return product + reciprocal * (power - product * total)

    maxima = te.compute(outer, lambda *row: te.max(x(*element(row, k)), axis=k), name="maxima")
    powers = te.compute(x.shape, lambda *at: tirx.exp(x(*at) - maxima(*row(at))), name="powers")
    totals = te.compute(outer, lambda *row: te.sum(powers(*element(row, j)), axis=j), name="totals")
    return te.compute(x.shape, share, name="softmax")


def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), axis = call.args, int(call.attrs.axis) % int(call.args[0].ty.ndim)
    return builder.call_te(softmax if str(x.ty.dtype) == "float32" else topi.nn.softmax, x, axis)


def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    rank = int(call.args[0].ty.ndim)
    axes = [int(axis) % rank for axis in call.attrs.axes]
    assert int(call.attrs.channel_axis) % rank == 1, "importers have channels on axis 1"
    assert axes == [*range(2, rank)], "importers have groups of whole planes"
    return builder.call_te(group_norm, *call.args, call.attrs.num_groups, call.attrs.epsilon)


def _instance_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    rank = int(call.args[0].ty.ndim)
    axes = [int(axis) % rank for axis in call.attrs.axes]
    return builder.call_te(instance_norm, *call.args, int(call.attrs.channel_axis) % rank, axes, call.attrs.epsilon)


LOWERINGS = {"relax.nn.group_norm": _group_norm, "relax.nn.instance_norm": _instance_norm}
"""The functions that lower the operators to TE, by name, for `LegalizeOps`."""

CPU_LOWERINGS = {"relax.nn.softmax": _softmax}
"""The functions that lower operators to TE for a CPU alone."""
