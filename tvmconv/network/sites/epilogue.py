"""Operators around a convolution that fit into its kernel: padding before it, and the epilogue after it.

A pass looks at one dataflow block at a time. A variable that is read elsewhere, or by two readers, has to be stored
anyway, so whatever follows it stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

import numpy as np
import tvm_ffi
from tvm import relax

from tvmconv.problem.epilogue import Function

from ..graph.constants import Array, constant_value
from ..graph.graph import Block, operator_name
from .batch_norm import normalized, scale_and_shift
from .formulas import activation_behind


@dataclass(frozen=True)
class Tail:
    """The epilogue `activation(y * scale[k] + shift[k] + residual)` after a convolution.

    `scale` and `shift` are (K,) in float64; None stands for ones and for zeros. A missing bound is infinite.
    """

    output: relax.Var
    """The variable that holds the result of the whole epilogue."""
    scale: Array | None
    shift: Array | None
    residual: relax.Expr | None
    addition: relax.Var | None
    """The variable that holds the sum with the residual."""
    low: float
    high: float
    function: Function | None
    """The activation, where it is more than two bounds."""


def tail_after(convolution: relax.Var, block: Block, additions: Collection[relax.Var] = ()) -> Tail:
    """Collect the operators after a convolution (N, K, ...) that its kernel's epilogue can take in.

    Where two convolutions are added, either could take the other's result as its residual: the variables in
    `additions` are those that other kernels have taken in.
    """
    channels = int(convolution.ty.shape[1])
    output, scale, shift, low, high = convolution, np.ones(channels), np.zeros(channels), -inf, inf
    has_scale = has_shift = False
    residual, addition, function = None, None, None
    while True:
        if (low, high) == (-inf, inf) and (found := activation_behind(output, block)) is not None:
            output, function = found
            break
        if (reader := block.only_reader(output)) is None or reader in additions:
            break
        value = block.values[reader]
        unclipped, keeps_type = (low, high) == (-inf, inf), tvm_ffi.structural_equal(value.ty, output.ty)
        if keeps_type and (bounds := clip_bounds(value)) is not None:
            # Clips are monotonic: a second clip of the first one's bounds gives the bounds of both.
            low, high = (min(max(bound, bounds[0]), bounds[1]) for bound in (low, high))
        elif not unclipped:
            break
        elif keeps_type and (bias := channel_vector("relax.add", value, output)) is not None:
            shift, has_shift = shift + bias, True
        elif (
            residual is None and keeps_type and (factor := channel_vector("relax.multiply", value, output)) is not None
        ):
            scale, shift, has_scale = scale * factor, shift * factor, True
        elif (
            residual is None
            and (factors := scale_and_shift(value))
            and (first := normalized(reader, block)) is not None
        ):
            reader = first
            scale, shift = scale * factors[0], shift * factors[0] + factors[1]
            has_scale = has_shift = True
        elif residual is None and keeps_type and (other := residual_of(value, output)) is not None:
            residual, addition = other, reader
        else:
            break
        output = reader
    return Tail(
        output, scale if has_scale else None, shift if has_shift else None, residual, addition, low, high, function
    )


def clip_bounds(value: relax.Expr) -> tuple[float, float] | None:
    """Return the bounds that an activation clips to, infinite where there is none; None for anything else."""
    name = operator_name(value)
    if name == "relax.nn.relu":
        return 0.0, inf
    if name == "relax.nn.relu6":
        return 0.0, 6.0
    if name == "relax.clip":
        low, high = (float(bound.value) for bound in value.args[1:])
        return (low, high) if low <= high else None
    if name in ("relax.maximum", "relax.minimum"):
        bound = constant_value(value.args[1])
        if bound is None or bound.size != 1 or np.isnan(bound).any():
            return None
        return (bound.item(), inf) if name == "relax.maximum" else (-inf, bound.item())
    return None


def channel_vector(operator: str, value: relax.Expr, y: relax.Var) -> Array | None:
    """Return the constant (K,) that an operator combines with the channels of y (N, K, ...); None for anything else."""
    if operator_name(value) != operator:
        return None
    vector = next((constant_value(argument) for argument in value.args if not argument.same_as(y)), None)
    channels = int(y.ty.shape[1])
    if vector is None:
        return None
    if vector.size == 1:
        return np.full(channels, vector.item(), np.float64)
    # Aligned from the right, as broadcasting is: (K, 1, 1) or (1, K, 1, 1).
    rank = y.ty.ndim - 1
    if vector.size != channels or vector.shape[-rank:] != (channels, *(1,) * (rank - 1)):
        return None
    return vector.reshape(-1).astype(np.float64)


def residual_of(value: relax.Expr, y: relax.Var) -> relax.Expr | None:
    """Return the tensor, of the type of y, that an addition adds to y; None for anything else."""
    if operator_name(value) != "relax.add":
        return None
    others = [argument for argument in value.args if not argument.same_as(y)]
    return others[0] if len(others) == 1 and tvm_ffi.structural_equal(others[0].ty, y.ty) else None


def padding_before(data: relax.Expr, block: Block) -> tuple[relax.Expr, tuple[int, int, int, int]]:
    """Return a convolution's input before it was padded with zeros, and this padding: (top, left, bottom, right)."""
    value = block.values.get(data)
    if value is None or operator_name(value) != "relax.nn.pad":
        return data, (0, 0, 0, 0)
    widths = [int(n) for n in value.attrs.pad_width]
    top, bottom, left, right = (0, 0, *widths[4:])[-4:]
    by_zeros = value.attrs.pad_mode == "constant" and value.attrs.pad_value == 0
    if not by_zeros or any(widths[:4]) or min(widths) < 0:
        return data, (0, 0, 0, 0)
    return value.args[0], (top, left, bottom, right)
