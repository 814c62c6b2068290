"""Converters of Resize and Upsample in all modes: Relax resizes correctly by whole multiples alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvmconv.network.graph.constants import Array
from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size, as_expr, product, python_text

from ...builder import ImportBuilder
from ...shared.resampling import Arithmetic, Formula, Resampling, of_tvm, resampled
from ..node import OPEN_HINT, Node
from ..sizes import Sizes

MAX_PARTS = 1000
"""The largest denominator of a scale that is taken for a fraction: 0.7 is 7/10, of which float32 has no exact value."""

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

    index: int
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


def resize(node: Node) -> relax.Expr:
    """Convert Resize since opset 10, in all modes and with all coordinates, of known and of open sizes."""
    since_11 = node.opset >= 11
    sizes = node.sizes(3, "sizes") if since_11 else None
    scales = None if sizes else _scales(node, 2 if since_11 else 1)
    # Before opset 11 the transformation had no name.
    coordinates = node.text("coordinate_transformation_mode", "half_pixel" if since_11 else "asymmetric")
    rounding = node.text("nearest_mode", "round_prefer_floor" if since_11 else "floor")
    roi = node.constant(1, "roi") if coordinates == "tf_crop_and_resize" else None
    return _resized(node, _axes(node, scales, sizes, roi), coordinates, rounding)


def upsample(node: Node) -> relax.Expr:
    """Convert Upsample, up to opset 9."""
    scales = node.attributes.get("scales") or _scales(node, 1)
    return _resized(node, _axes(node, scales, None, None), "asymmetric", "floor")


def _scales(node: Node, index: int) -> list[float]:
    """Return the scales of a node, which may not depend on open sizes; none for an operand that is left out."""
    if isinstance(node.operand(index), Sizes):
        raise Refused("its scales follow from open sizes", OPEN_HINT)
    scales = node.constant(index, "scales")
    return [] if scales is None else [float(scale) for scale in scales.reshape(-1)]


def _axes(node: Node, scales: Sequence[float] | None, sizes: Sequence[Size] | None, roi: Array | None) -> list[Axis]:
    """Return the axes that are resized; raise `Refused` where the rank of the input is not known."""
    shape, facts = node.shape_of(), node.facts
    indices = [index % len(shape) for index in node.attributes.get("axes", range(len(shape)))]
    numbers: Sequence[Any] = sizes or scales or ()
    if len(numbers) != len(indices) or any(facts.proves(as_expr(n) < 1 if sizes else n <= 0) is True for n in numbers):
        raise Refused(f"it has neither scales nor sizes for {len(indices)} axes")
    crops = np.reshape(roi, (2, -1)).T.tolist() if roi is not None and roi.size else [[0, 1]] * len(indices)
    axes = []
    for index, number, crop in zip(indices, numbers, crops, strict=True):
        inputs = facts.simplified(shape[index])
        node.require(as_expr(inputs) >= 1, f"needs elements along axis {index}, which has {python_text(inputs)}")
        if sizes:
            outputs = facts.simplified(number)
            node.require(as_expr(outputs) >= 1, f"needs a size of at least 1 for axis {index}, not {outputs}")
            scale = _quotient(node, inputs, outputs)
        else:
            part = Fraction(number).limit_denominator(MAX_PARTS)
            part = part if np.float32(part) == np.float32(number) else Fraction(number)
            outputs = facts.simplified(inputs * part.numerator // part.denominator)
            node.require(as_expr(outputs) >= 1, f"needs an axis {index} that its scale {number:.6g} leaves elements of")
            scale = number
        axes.append(Axis(index, inputs, outputs, scale, tuple(crop)))
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        axes = _in_proportion(axes, policy)
    return [index for index in axes if index.scale != 1 or index.crop != (0, 1)]


def _quotient(node: Node, inputs: Size, outputs: Size) -> float | None:
    """Return the number of outputs for each input; None where open sizes decide on it."""
    if isinstance(inputs, int) and isinstance(outputs, int):
        return outputs / inputs
    times = node.facts.quotient([outputs], [inputs])
    return float(times) if isinstance(times, int) and node.facts.are_equal(outputs, product([inputs, times])) else None


def _in_proportion(axes: Sequence[Axis], policy: str) -> list[Axis]:
    """Return the axes with one scale for all, the smallest or the largest of theirs."""
    scales = [axis.scale for axis in axes if axis.scale is not None and not axis.is_open]
    if len(scales) < len(axes):
        raise Refused(f"its keep_aspect_ratio_policy {policy!r} needs sizes that are known", OPEN_HINT)
    scale = (min if policy == "not_larger" else max)(scales)
    return [replace(axis, scale=scale, outputs=int(scale * int(axis.inputs) + 0.5)) for axis in axes]


def _resized(node: Node, axes: list[Axis], coordinates: str, rounding: str) -> relax.Expr:
    """Return the first operand, resized along one axis after the other."""
    mode, x = node.text("mode", "nearest"), node.operands[0]
    if mode not in ("nearest", "linear", "cubic") or rounding not in ROUNDINGS:
        raise Refused(f"its mode {mode!r} with the nearest_mode {rounding!r} is unknown")
    y = resampled(node.builder, x, [_resampling(node, axis, mode, coordinates, rounding) for axis in axes])
    if coordinates == "tf_crop_and_resize" and (cropped := [axis for axis in axes if _leaves_image(axis)]):
        y = extrapolated(node.builder, y, cropped, node.attributes.get("extrapolation_value", 0.0))
    return y


def _resampling(node: Node, axis: Axis, mode: str, coordinates: str, rounding: str) -> Resampling:
    """Return how the node resizes an axis."""
    antialias, excludes = (bool(node.attributes.get(key, 0)) for key in ("antialias", "exclude_outside"))
    is_smoothed = antialias and mode != "nearest" and (axis.scale is None or axis.scale < 1)
    if is_smoothed and axis.is_open:
        raise Refused("its antialias needs sizes that are known", OPEN_HINT)
    return Resampling(
        axis.index,
        axis.outputs,
        mode,
        coordinate(axis, coordinates),
        step=(lambda arithmetic, *_: arithmetic.number(1 / float(axis.scale or 1))) if is_smoothed else None,
        rounded=ROUNDINGS[rounding],
        coefficient=node.attributes.get("cubic_coeff_a", -0.75),
        excludes=excludes,
        times=int(axis.scale or 1) if _repeats(axis) and coordinates in PERIODIC and not excludes else None,
        # ONNX Runtime rounds to the nearest element what it has in float32.
        table_dtype="float32" if mode == "nearest" else "float64",
    )


def _leaves_image(axis: Axis) -> bool:
    """Return whether some coordinate of tf_crop_and_resize may be outside of the image."""
    return axis.crop[0] < 0 or axis.crop[1] > 1 or axis.crop[0] > 1 or axis.crop[1] < 0


def _repeats(axis: Axis) -> bool:
    """Return whether each input along an axis has the same whole number of outputs."""
    if axis.scale is None or axis.scale != int(axis.scale) or axis.crop != (0, 1):
        return False
    return axis.is_open or axis.outputs == axis.inputs * axis.scale


# --- Coordinates ---


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
                output = arithmetic.number(at[axis.index])
                x = coordinate(axis, "tf_crop_and_resize")(arithmetic, output, as_expr(size), y.shape[axis.index])
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
