"""Quantized tensors in a network: integers that stand for numbers, as `relax.dequantize` makes these of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..graph.constants import Array, constant_value
from ..graph.graph import call_of, calls

INTEGERS = ("int8", "int16", "int32", "uint8", "uint16")
"""The types of integers that can stand for numbers."""

Lookup = Callable[[relax.Expr], "relax.Expr | None"]
"""A function that returns what a variable is bound to."""


def parameter_problem(
    scale: relax.Expr, zero_point: relax.Expr | None, dtype: str, size: int | None, kind: str
) -> str | None:
    """Return what is wrong with the scale and the zero point of integers of a type; None if nothing is known to be.

    `size` is the number of the tensor's slices that may have a scale each, None if that is known only when the model
    runs; `kind` is the name of the integers in the message.
    """
    if dtype not in INTEGERS:
        return f"its {kind} is of {dtype}, and may be of {', '.join(INTEGERS)}"
    if zero_point is not None and str(zero_point.ty.dtype) not in (dtype, "int32", "int64"):
        return f"its zero point is of {zero_point.ty.dtype}, and its {kind} of {dtype}"
    given, point = constant_value(scale), constant_value(zero_point)
    for name, values in (("scale", given), ("zero point", point)):
        if values is not None and values.size != 1 and size is not None and values.size != size:
            return f"it has {values.size} numbers as its {name}, for {size} slices of its {kind}"
    if given is not None:
        numbers = given.astype(np.float64)
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
        if wrong.size:
            return f"its scale is {wrong.flat[0]:g}, and has to be a finite number above 0"
    if point is not None:
        limits = np.iinfo(dtype)
        wrong = point[(point < limits.min) | (point > limits.max)]
        if wrong.size:
            return f"its zero point is {wrong.flat[0]}, and {dtype} goes from {limits.min} to {limits.max}"
        if dtype == "int32" and point.any():
            return f"its zero point is {point[point != 0].flat[0]}, and has to be 0 for int32"
    return None


@dataclass(frozen=True)
class Scaling:
    """The scale and the zero point of a whole tensor."""

    scale: float
    zero_point: int

    @property
    def operands(self) -> tuple[relax.Expr, relax.Expr]:
        """The operands of `relax.quantize` and `relax.dequantize`."""
        return relax.const(self.scale, "float32"), relax.const(self.zero_point, "int32")


def scaling_of(value: relax.Expr | None) -> Scaling | None:
    """Return the scaling of a quantization or dequantization to or from float32.

    None for anything else, and where each channel has a scale or zero point, or it is known only when the model runs.
    """
    call = call_of(value, "quantize", "dequantize")
    if call is None:
        return None
    scale, zero_point = (constant_value(each) for each in call.args[1:])
    if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
        return None
    numbers = call.args[0] if calls(call, "quantize") else call
    return Scaling(float(scale.item()), int(zero_point.item())) if str(numbers.ty.dtype) == "float32" else None


@dataclass(frozen=True)
class QuantizedConstant:
    """A constant of integers, and the scale and zero point of each; all three are arrays of one shape."""

    values: Array
    scale: Array
    zero_point: Array

    @property
    def centered(self) -> Array:
        """The integers less their zero points, in int64."""
        return self.values.astype(np.int64) - self.zero_point

    @property
    def numbers(self) -> Array:
        """The numbers that the integers stand for, in float32."""
        return self.centered.astype(np.float32) * self.scale.astype(np.float32)

    def mapped(self, function: Callable[[Array], Array]) -> QuantizedConstant:
        """Return the constant with a function that moves elements applied to it."""
        return QuantizedConstant(*map(function, (self.values, self.scale, self.zero_point)))


MOVING: Mapping[str, Callable[[relax.Call], Callable[[Array], Array]]] = {
    "permute_dims": lambda call: (
        lambda array: np.transpose(
            array, None if call.attrs.axes is None else tuple(int(axis) for axis in call.attrs.axes)
        )
    ),
    **{
        name: lambda call: lambda array: np.reshape(array, [int(size) for size in call.ty.shape])
        for name in ("expand_dims", "flatten", "reshape", "squeeze")
    },
}
"""NumPy's functions for Relax's operators that move the elements of a weight."""


def quantized_constant(expr: relax.Expr, lookup: Lookup) -> QuantizedConstant | None:
    """Return the integers of a tensor that is dequantized from a constant, then maybe moved; None for anything else."""
    value = lookup(expr) if isinstance(expr, relax.Var) else expr
    if (move := call_of(value, *MOVING)) is not None:
        inner = quantized_constant(move.args[0], lookup)
        return None if inner is None else inner.mapped(MOVING[move.op.name.removeprefix("relax.")](move))
    if (call := call_of(value, "dequantize")) is None:
        return None
    values, scale, zero_point = (constant_value(each) for each in call.args)
    if values is None or scale is None or zero_point is None:
        return None
    axis = int(call.attrs.axis)
    return QuantizedConstant(values, *(broadcast_along_axis(each, values.shape, axis) for each in (scale, zero_point)))


def broadcast_along_axis(vector: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return one number, or one for each index of an axis, broadcast to a shape."""
    if vector.size == 1:
        return np.broadcast_to(vector.reshape(()), shape)
    broadcast_shape = [1] * len(shape)
    broadcast_shape[axis % len(shape)] = vector.size
    return np.broadcast_to(vector.reshape(broadcast_shape), shape)
