"""Coordinates of ONNX's Resize: where each output lies among the inputs of its axis, in the steps of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx, topi

from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size, as_expr

from ...builder import ImportBuilder
from ...shared.resampling import Arithmetic, Formula, of_tvm

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


def coordinate(axis: Axis, transformation: str) -> Formula:
    """Return the formula of the coordinate of an output among the inputs of an axis."""

    def formula(arithmetic: Arithmetic, output: Any, inputs: Any, outputs: Any) -> Any:
        number, scale = arithmetic.number, axis.scale
        if isinstance(inputs, int) and isinstance(outputs, int):
            scaled = float(scale or 1) * inputs
            # The quotient of two sizes, times the one, is not quite the other.
            length = number(outputs if abs(scaled - outputs) < NEAR else scaled)
        elif scale is None:
            # TVM looks for bounds of numbers, and fails for a quotient of two sizes alone.
            scale, length = arithmetic.larger(number(outputs) / number(inputs), number(TINY)), number(outputs)
        else:
            length = number(scale) * number(inputs)
        return _coordinates(
            arithmetic, transformation, output, number(scale), number(inputs), number(outputs), length, axis.crop
        )

    return formula


def extrapolated(builder: ImportBuilder, y: relax.Expr, axes: Sequence[Axis], value: float) -> relax.Expr:
    """Return the result of tf_crop_and_resize with a value where a coordinate lies outside of the image."""

    arithmetic = of_tvm("float32")

    def compute(y: te.Tensor, *sizes: Any) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            outside = []
            for axis, size in zip(axes, sizes, strict=True):
                output = arithmetic.number(at[axis.place])
                x = coordinate(axis, "tf_crop_and_resize")(arithmetic, output, as_expr(size), y.shape[axis.place])
                outside.append(tirx.any(x < 0, x > arithmetic.number(size - 1)))
            return tirx.Select(tirx.any(*outside), tirx.const(value, y.dtype), y(*at))

        return te.compute(y.shape, element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, y, *(axis.inputs for axis in axes), primfunc_name_hint="extrapolated")


def _coordinates(
    arithmetic: Arithmetic, transformation: str, at: Any, scale: Any, size: Any, outputs: Any, length: Any, crop: Any
) -> Any:
    """Return the coordinates of outputs, whose indices are `at`, in the steps of ONNX Runtime.

    `length` is the number of outputs, which may have a fraction where the node gives a scale.
    """
    number, choose = arithmetic.number, arithmetic.choose
    half, zero, one = number(0.5), number(0), number(1)
    if transformation == "asymmetric":
        return at / scale
    if transformation == "align_corners":
        return choose(length <= 1, at * zero, at * (size - one) / choose(length <= 1, one, length - one))
    if transformation == "tf_crop_and_resize":
        start, end, last = number(crop[0]), number(crop[1]), size - one
        middle = at * zero + (end - start) * last * half
        steps = at * (end - start) * last / choose(length <= 1, one, length - one)
        return start * last + choose(length <= 1, middle, steps)
    centers = (at + half) / scale - half
    if transformation == "half_pixel":
        return centers
    if transformation == "pytorch_half_pixel":
        return choose(length <= 1, at * zero, centers)
    if transformation == "half_pixel_symmetric":
        return size * half * (one - outputs / length) + (at + half) / scale - half
    raise Refused(
        f"the coordinate_transformation_mode {transformation} is unknown", f"one of {', '.join(TRANSFORMATIONS)}"
    )


ROUNDINGS: dict[str, Callable[[Arithmetic, Any], Any]] = {
    "round_prefer_floor": lambda arithmetic, at: arithmetic.ceil(at - arithmetic.number(0.5)),
    "round_prefer_ceil": lambda arithmetic, at: arithmetic.floor(at + arithmetic.number(0.5)),
    "floor": lambda arithmetic, at: arithmetic.floor(at),
    "ceil": lambda arithmetic, at: arithmetic.ceil(at),
}
"""The functions that round coordinates to the index of the nearest input, by nearest_mode."""
