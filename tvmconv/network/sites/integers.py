"""Convolutions and linear layers of a quantized network, as sums of products of integers, with their epilogues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from tvm import relax

from tvmconv.problem.activations import ACTIVATIONS
from tvmconv.problem.dtypes import QUANTIZED, STORAGE_TYPES

from ..graph.constants import Array, constant_value
from ..graph.graph import Block, call_of
from .epilogue import Tail
from .quantized import Scaling, quantized_constant, scaling_of

NO_INT8 = "its weight less its zero point is no int8"


@dataclass(frozen=True)
class Factors:
    """The operands of a convolution in integers."""

    x: relax.Expr
    zero_point: int
    """The integer that stands for zero in x."""
    weight: Array
    """The integers of the weight in int8, whose zero is 0."""
    scale: Array | None
    """The scale (K,) of the sums; None where the sums are the result."""


def integer_factors(call: relax.Call, data: relax.Expr, axis: int, block: Block) -> Factors | str | None:
    """Return the factors of a convolution of data; the reason why it has to be in float32, or None without one.

    `axis` is the axis of the output channels in the weight.
    """
    dtype = str(call.args[0].ty.dtype)
    if dtype == "int32":
        return _centered_factors(call, data, block)
    if dtype != "float32":
        return None
    weight = quantized_constant(call.args[1], block.values.get)
    if (value := call_of(block.values.get(data), "dequantize")) is None:
        return None if weight is None else "its input is not quantized"
    if weight is None:
        return "its weight is not quantized"
    x, scaling = value.args[0], scaling_of(value)
    if scaling is None:
        return "its input has more than one scale, or one that is known only when the model runs"
    if str(x.ty.dtype) not in QUANTIZED:
        return f"its input is of {x.ty.dtype}"
    scales = np.moveaxis(weight.scale, axis, 0).reshape(weight.scale.shape[axis], -1).astype(np.float64)
    if (scales != scales[:, :1]).any():
        return "its weight has scales of others than its output channels"
    if (integers := in_int8(weight.centered)) is None:
        return NO_INT8
    return Factors(x, scaling.zero_point, integers, scaling.scale * scales[:, 0])


def _centered_factors(call: relax.Call, data: relax.Expr, block: Block) -> Factors | str | None:
    """Return the factors of a convolution in int32, if x is a tensor of bytes, maybe less a zero point."""
    weight, value, zero_point = constant_value(call.args[1]), block.values.get(data), 0
    if (difference := call_of(value, "subtract")) is not None:
        value = block.values.get(difference.args[0])
    cast = call_of(value, "astype")
    if cast is None or str(cast.args[0].ty.dtype) not in QUANTIZED or weight is None:
        return None
    if (integers := in_int8(weight)) is None:
        return NO_INT8
    if difference is not None:
        point = constant_value(difference.args[1])
        if point is None or point.size != 1:
            return "its input has more than one zero point"
        zero_point = int(point.item())
    return Factors(cast.args[0], zero_point, integers, None)


def in_int8(weight: Array) -> Array | None:
    """Return a weight in int8; None where int8 does not hold it."""
    low, high = STORAGE_TYPES["int8"].bounds or (0, 0)
    is_held = not weight.size or (weight.min() >= low and weight.max() <= high)
    return weight.astype(np.int8) if is_held else None


@dataclass(frozen=True)
class IntegerTail:
    """The epilogue after sums of integers, with scale, shift and bounds for them."""

    tail: Tail
    dtype: str
    """The type of the output."""
    zero_point: int = 0
    """The number that stands for zero in an output of integers."""
    factor: float = 1.0
    """The number that the result is multiplied by before it is stored."""


def integer_tail(tail: Tail, scale: Array, block: Block) -> IntegerTail:
    """Return the epilogue of sums with a scale (K,), with the quantization after the tail where it can take that in.

    An output of integers is quantized with one scale: the epilogue computes multiples of it. If the residual is
    quantized with another scale, it computes multiples of that scale; before an activation that does not commute with
    factors, it computes the numbers themselves. A last factor makes multiples of the output's scale of these. Without a
    quantization the output is in float32.
    """
    ones = np.ones(len(scale))
    factor = scale * (ones if tail.scale is None else tail.scale)
    quantized = _quantized(tail, block)
    if quantized is None:
        return IntegerTail(replace(tail, scale=factor), "float32")
    shift = np.zeros(len(scale)) if tail.shift is None else tail.shift / quantized.unit
    low, high = _bounds(tail, quantized)
    scaled = replace(
        tail,
        output=quantized.output,
        scale=factor / quantized.unit,
        shift=shift - quantized.residual_zero if tail.shift is not None or quantized.residual_zero else None,
        residual=quantized.residual,
        low=low,
        high=high,
    )
    last = quantized.unit / quantized.scaling.scale
    return IntegerTail(scaled, quantized.dtype, quantized.scaling.zero_point, last)


@dataclass(frozen=True)
class _Quantized:
    """The quantization after a tail."""

    output: relax.Var
    """The variable of the integers."""
    scaling: Scaling
    dtype: str
    unit: float
    """The number that the epilogue computes multiples of."""
    residual: relax.Expr | None = None
    """The integers of the residual."""
    residual_zero: int = 0


def _quantized(tail: Tail, block: Block) -> _Quantized | None:
    """Return the quantization after a tail; None where no epilogue can take it in."""
    reader = block.only_reader(tail.output)
    value = None if reader is None else call_of(block.values[reader], "quantize")
    if value is None or (scaling := scaling_of(value)) is None or str(value.ty.dtype) not in QUANTIZED:
        return None
    dtype = str(value.ty.dtype)
    commutes = tail.function is None or ACTIVATIONS[tail.function.name].is_homogeneous
    if tail.residual is None:
        return _Quantized(reader, scaling, dtype, scaling.scale if commutes else 1.0)
    added = call_of(block.values.get(tail.residual), "dequantize")
    if not commutes or (other := scaling_of(added)) is None or str(added.args[0].ty.dtype) != dtype:
        return None
    return _Quantized(reader, scaling, dtype, other.scale, added.args[0], other.zero_point)


def _bounds(tail: Tail, quantized: _Quantized) -> tuple[float, float]:
    """Return a tail's bounds in multiples of the unit; infinite ones where the type itself has them."""
    scaling, unit = quantized.scaling, quantized.unit
    least, largest = (bound - scaling.zero_point for bound in STORAGE_TYPES[quantized.dtype].bounds or (0, 0))
    low, high = tail.low / scaling.scale, tail.high / scaling.scale
    return (
        -inf if round(max(low, -1e9)) <= least else tail.low / unit,
        inf if round(min(high, 1e9)) >= largest else tail.high / unit,
    )
