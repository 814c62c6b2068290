"""Coordinates of ONNX's Resize: where each output lies among the inputs of its axis, whose size may be open.

An axis of known sizes has tables, which NumPy makes beforehand. Formulas compute the same of open sizes in a call, in
the steps of ONNX Runtime, which are in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvmconv.network.graph.constants import Array
from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size

from ...builder import ImportBuilder
from ...resampling import by_formula, cubic_weights

TRANSFORMATIONS = (
    "align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_crop_and_resize",
)  # fmt: skip
"""ONNX's names of the ways in which coordinates are computed."""

PERIODIC = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
"""The ways in which coordinates go on by one for each further input, whatever the number of inputs."""

NEAR = 1e-3
"""The difference up to which a scaled size counts as the whole number of outputs."""

TINY = 1e-30
"""A scale below that of any two sizes."""


@dataclass(frozen=True)
class Axis:
    """An axis that is resized, with the number of inputs and of outputs along it."""

    place: int
    inputs: Size
    """The number of inputs, which may be open."""
    outputs: Size
    scale: float | None
    """The number of outputs for each input, as the node gives it; None for the quotient of open sizes."""
    crop: tuple[float, float]
    """The part of the input that is resized, from 0 to 1, where coordinates are those of tf_crop_and_resize."""

    @property
    def is_open(self) -> bool:
        """True if a size is known only when the model runs."""
        return not (isinstance(self.inputs, int) and isinstance(self.outputs, int))


def table(axis: Axis, transformation: str, dtype: str = "float64") -> Array:
    """Return the coordinate among the inputs of each output of an axis whose sizes are known."""
    at, scaled = np.arange(axis.outputs, dtype=dtype), float(axis.scale or 1) * int(axis.inputs)
    # The quotient of two sizes, times the one, is not quite the other.
    length = axis.outputs if abs(scaled - int(axis.outputs)) < NEAR else scaled
    return np.asarray(_coordinates(_Numbers(np.dtype(dtype).type), axis, transformation, at, length))


def by_coordinates(
    builder: ImportBuilder,
    x: relax.Expr,
    axis: Axis,
    transformation: str,
    *,
    rounding: str | None,
    coefficient: float | None,
    excludes: bool,
) -> relax.Expr:
    """Return x resized along an axis of open sizes.

    `rounding` is that of the nearest input, None to interpolate: with the `coefficient` of cubic convolution, or
    linearly where it is None. `excludes` leaves inputs outside of the axis out of sums.
    """

    def taps(output: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> Sequence[tuple[tirx.Expr, tirx.Expr | None]]:
        at = _at(axis, transformation, output, size, outputs)
        if rounding is not None:
            return [(_ROUNDED[rounding](_TVM, at).astype("int64"), None)]
        left = tirx.floor(at)
        part, first = at - left, left.astype("int64")
        if coefficient is None:
            weighted = [(first, _number(1) - part), (first + 1, part)]
        else:
            weighted = [(first + i - 1, weight) for i, weight in enumerate(cubic_weights(part, coefficient))]
        if not excludes:
            return weighted
        inside = [
            (index, tirx.if_then_else(tirx.all(index >= 0, index < size), weight, _number(0)))
            for index, weight in weighted
        ]
        total = reduce(lambda a, b: a + b, [weight for _, weight in inside])
        return [(index, weight / total) for index, weight in inside]

    return by_formula(builder, x, axis.place, axis.outputs, taps)


def extrapolated(builder: ImportBuilder, y: relax.Expr, axes: Sequence[Axis], value: float) -> relax.Expr:
    """Return the result of tf_crop_and_resize with a value where a coordinate lies outside of the image."""

    def compute(y: te.Tensor, *sizes: Any) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            outside = []
            for axis, size in zip(axes, sizes, strict=True):
                x = _at(axis, "tf_crop_and_resize", at[axis.place], size, y.shape[axis.place])
                outside.append(tirx.any(x < 0, x > _number(size - 1)))
            return tirx.Select(tirx.any(*outside), tirx.const(value, y.dtype), y(*at))

        return te.compute(y.shape, element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, y, *(axis.inputs for axis in axes), primfunc_name_hint="extrapolated")


def _at(axis: Axis, transformation: str, output: tirx.Expr, size: Any, outputs: Any) -> tirx.Expr:
    """Return the coordinate of an output, for sizes of a call."""
    # TVM looks for bounds of numbers, and fails for a quotient of two sizes alone.
    quotient = tirx.max(_number(outputs) / _number(size), _number(TINY))
    scale = quotient if axis.scale is None else axis.scale
    length = outputs if axis.scale is None else _number(scale) * _number(size)
    in_call = Axis(axis.place, size, outputs, scale, axis.crop)
    return _coordinates(_TVM, in_call, transformation, _number(output), length)


@dataclass(frozen=True)
class _Numbers:
    """Arithmetic on numbers of NumPy or on expressions of TVM."""

    number: Callable[[Any], Any]
    """The function that makes a floating-point number of an integer or of one of Python."""
    ceil: Callable[[Any], Any] = np.ceil
    floor: Callable[[Any], Any] = np.floor
    choose: Callable[[Any, Any, Any], Any] = np.where


def _number(value: Any) -> tirx.Expr:
    return tirx.const(float(value), "float32") if isinstance(value, (int, float)) else value.astype("float32")


_TVM = _Numbers(_number, tirx.ceil, tirx.floor, tirx.Select)


def _coordinates(numbers: _Numbers, axis: Axis, transformation: str, at: Any, length: Any) -> Any:
    """Return the coordinates of outputs, whose indices are `at`, in the steps of ONNX Runtime.

    `length` is the number of outputs, which may have a fraction where the node gives a scale.
    """
    number = numbers.number
    scale, size, half, zero = number(axis.scale), number(axis.inputs), number(0.5), number(0)
    length = number(length)
    if transformation == "asymmetric":
        return at / scale
    if transformation == "align_corners":
        is_one = length <= 1
        return numbers.choose(
            is_one, at * zero, at * (size - number(1)) / numbers.choose(is_one, number(1), length - number(1))
        )
    if transformation == "tf_crop_and_resize":
        start, end, last = number(axis.crop[0]), number(axis.crop[1]), size - number(1)
        is_one = length <= 1
        middle = at * zero + (end - start) * last * half
        steps = at * (end - start) * last / numbers.choose(is_one, number(1), length - number(1))
        return start * last + numbers.choose(is_one, middle, steps)
    centers = (at + half) / scale - half
    if transformation == "half_pixel":
        return centers
    if transformation == "pytorch_half_pixel":
        return numbers.choose(length <= 1, at * zero, centers)
    if transformation == "half_pixel_symmetric":
        return size * half * (number(1) - number(axis.outputs) / length) + (at + half) / scale - half
    raise Refused(
        f"the coordinate_transformation_mode {transformation} is unknown", f"one of {', '.join(TRANSFORMATIONS)}"
    )


_ROUNDED: dict[str, Callable[[_Numbers, Any], Any]] = {
    "round_prefer_floor": lambda numbers, at: numbers.ceil(at - numbers.number(0.5)),
    "round_prefer_ceil": lambda numbers, at: numbers.floor(at + numbers.number(0.5)),
    "floor": lambda numbers, at: numbers.floor(at),
    "ceil": lambda numbers, at: numbers.ceil(at),
}

ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    name: partial(rounded, _Numbers(np.float32)) for name, rounded in _ROUNDED.items()
}
"""The functions that round coordinates to the index of the nearest input, by nearest_mode."""
