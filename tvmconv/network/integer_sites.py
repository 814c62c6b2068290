"""Convolutions and linear layers of a quantized network, as sums of products of integers with the epilogue behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from tvm import relax

from ..dtypes import QUANTIZED, STORAGE_TYPES
from .constants import Array, constant_value
from .epilogue import Tail
from .graph import Block, call_of
from .quantized import Scaling, quantized_constant, scaling_of

HOMOGENEOUS = ("leaky_relu",)
"""The activations, beside bounds, of which a multiple of y is the same multiple of that of y."""


@dataclass(frozen=True)
class Factors:
    """The operands of a convolution in integers."""

    x: relax.Expr
    zero_point: int
    """The integer that stands for zero in x."""
    weight: Array
    """The integers of the weight in int8, whose zero is 0."""
    scale: Array | None
    """The scale (K,) of the sums; None where these are themselves the result."""


def integer_factors(call: relax.Call, data: relax.Expr, axis: int, block: Block) -> Factors | str | None:
    """Return the factors of a convolution of data; the reason why it has to be in float32, or None without one.

    `axis` is that of the output channels in the weight.
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
    if (integers := _in_int8(weight.centered)) is None:
        return "its weight less its zero point is no int8"
    return Factors(x, scaling.zero_point, integers, scaling.scale * scales[:, 0])


def _centered_factors(call: relax.Call, data: relax.Expr, block: Block) -> Factors | None:
    """Return the factors of a convolution in int32, of which those of x are a type of one byte less a zero point."""
    weight, value, zero_point = constant_value(call.args[1]), block.values.get(data), 0
    if (difference := call_of(value, "subtract")) is not None:
        point = constant_value(difference.args[1])
        if point is None or point.size != 1:
            return None
        value, zero_point = block.values.get(difference.args[0]), int(point.item())
    cast = call_of(value, "astype")
    if cast is None or str(cast.args[0].ty.dtype) not in QUANTIZED or weight is None:
        return None
    integers = _in_int8(weight)
    return None if integers is None else Factors(cast.args[0], zero_point, integers, None)


def _in_int8(weight: Array) -> Array | None:
    low, high = STORAGE_TYPES["int8"].bounds or (0, 0)
    is_held = not weight.size or (weight.min() >= low and weight.max() <= high)
    return weight.astype(np.int8) if is_held else None


@dataclass(frozen=True)
class IntegerTail:
    """The epilogue behind sums of integers, with scale, shift and bounds for them."""

    tail: Tail
    dtype: str
    """The type of the output."""
    zero_point: int = 0
    """The number that stands for zero in an output of integers."""


def integer_tail(tail: Tail, scale: Array, block: Block) -> IntegerTail:
    """Return the epilogue of sums with a scale (K,), with the quantization behind the tail where it can be in it.

    An output of integers is quantized with one scale: the epilogue computes multiples of it. What is added has to be
    quantized with the same, and the activation to commute with factors. Else the output is in float32.
    """
    ones = np.ones(len(scale))
    factor = scale * (ones if tail.scale is None else tail.scale)
    quantized = _quantized(tail, block)
    if quantized is None:
        return IntegerTail(replace(tail, scale=factor), "float32")
    output, residual, residual_zero, scaling, dtype = quantized
    shift = np.zeros(len(scale)) if tail.shift is None else tail.shift / scaling.scale
    low, high = _bounds(tail, scaling, dtype)
    scaled = replace(
        tail,
        output=output,
        scale=factor / scaling.scale,
        shift=shift - residual_zero if tail.shift is not None or residual_zero else None,
        residual=residual,
        low=low,
        high=high,
    )
    return IntegerTail(scaled, dtype, scaling.zero_point)


def _quantized(tail: Tail, block: Block) -> tuple[relax.Var, relax.Expr | None, int, Scaling, str] | None:
    """Return the variable of a tail's output quantized, the residual in its integers, its zero point, and the output's.

    None where that cannot be. The output's scaling has its type behind it.
    """
    reader = block.only_reader(tail.output)
    value = None if reader is None else call_of(block.values[reader], "quantize")
    if value is None or (scaling := scaling_of(value)) is None:
        return None
    dtype = str(value.ty.dtype)
    if dtype not in QUANTIZED or (tail.function is not None and tail.function.name not in HOMOGENEOUS):
        return None
    if tail.residual is None:
        return reader, None, 0, scaling, dtype
    added = call_of(block.values.get(tail.residual), "dequantize")
    if (other := scaling_of(added)) is None or other.scale != scaling.scale or str(added.args[0].ty.dtype) != dtype:
        return None
    return reader, added.args[0], other.zero_point, scaling, dtype


def _bounds(tail: Tail, scaling: Scaling, dtype: str) -> tuple[float, float]:
    """Return a tail's bounds in multiples of the scale; infinite ones where the type itself has them."""
    least, largest = (bound - scaling.zero_point for bound in STORAGE_TYPES[dtype].bounds or (0, 0))
    low, high = tail.low / scaling.scale, tail.high / scaling.scale
    return (-inf if round(max(low, -1e9)) <= least else low), (inf if round(min(high, 1e9)) >= largest else high)
