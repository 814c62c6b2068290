"""Converters of Resize and Upsample in all modes, and of GridSample: Relax is right for few of them.

Relax resizes correctly by integer multiples, with one way of rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tvm import relax, tirx

from ..dtypes import NARROW
from .constants import Array
from .faults import Refused
from .grid_sampling import MODES, PADDINGS, sample
from .onnx_node import OPEN_HINT, Node
from .resampling import SAMPLE, cubic_taps, gather, interpolate, linear_taps, repeat


@dataclass(frozen=True)
class Axis:
    """One axis that is resized."""

    place: int
    inputs: int
    """The number of inputs; `SAMPLE` of an open one, and where outputs repeat."""
    outputs: int
    scale: float
    """The number of outputs for each input, as the node gives it; the size of the output is rounded."""
    crop: tuple[float, float]
    """The part of the input that is resized, from 0 to 1, where coordinates are those of tf_crop_and_resize."""
    is_open: bool = False
    """True if the number of inputs is known only when the model runs."""


def resize(node: Node) -> relax.Expr:
    """Convert Resize since opset 10, in all modes and with all coordinates."""
    since_11 = node.opset >= 11
    scales = node.constant(2 if since_11 else 1, "scales")
    sizes = node.constant(3, "sizes") if since_11 else None
    # Before opset 11 the transformation had no name.
    coordinates = node.text("coordinate_transformation_mode", "half_pixel" if since_11 else "asymmetric")
    rounding = node.text("nearest_mode", "round_prefer_floor" if since_11 else "floor")
    roi = node.constant(1, "roi") if coordinates == "tf_crop_and_resize" else None
    return _resized(node, _axes(node, scales, sizes, roi), coordinates, rounding)


def upsample(node: Node) -> relax.Expr:
    """Convert Upsample, up to opset 9."""
    scales = node.attributes.get("scales") or node.constant(1, "scales")
    return _resized(node, _axes(node, np.array(scales), None, None), "asymmetric", "floor")


def grid_sample(node: Node) -> relax.Expr:
    """Convert GridSample, of planes and of volumes."""
    mode, padding = node.text("mode", "linear").removeprefix("bi"), node.text("padding_mode", "zeros")
    if mode not in MODES or padding not in PADDINGS:
        raise Refused(f"the mode {mode} with {padding} is unknown")
    align_corners = bool(node.attributes.get("align_corners", 0))
    x, grid = node.operands
    return sample(node.builder, x, grid, mode, padding, align_corners)


def _axes(node: Node, scales: Array | None, sizes: Array | None, roi: Array | None) -> list[Axis]:
    """Return the axes that are resized; raise `Refused` where a size is known only when the model runs."""
    shape = node.operands[0].ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise Refused("the rank of its input is known only when the model runs", OPEN_HINT)
    places = [place % len(shape) for place in node.attributes.get("axes", range(len(shape)))]
    by_size = sizes is not None and sizes.size > 0
    given = sizes if by_size else scales
    if given is None or given.size != len(places) or (given <= 0).any():
        raise Refused(f"it has neither scales nor sizes for {len(places)} axes")
    crops = np.reshape(roi, (2, -1)).T.tolist() if roi is not None and roi.size else [[0, 1]] * len(places)
    axes = []
    for place, number, crop in zip(places, given.tolist(), crops, strict=True):
        is_open = not isinstance(shape[place], tirx.IntImm)
        if not by_size and number == 1 and crop == [0, 1]:
            continue
        if is_open and (by_size or number != int(number)):
            raise Refused("the shape of its input is known only when the model runs", OPEN_HINT)
        inputs = SAMPLE if is_open else int(shape[place])
        outputs = int(number) if by_size else int(number * inputs)
        axes.append(Axis(place, inputs, outputs, number / inputs if by_size else number, tuple(crop), is_open))
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if by_size and policy != "stretch":
        scale = (min if policy == "not_larger" else max)(axis.scale for axis in axes)
        axes = [replace(axis, scale=scale, outputs=int(scale * axis.inputs + 0.5)) for axis in axes]
    return [axis for axis in axes if axis.scale != 1 or axis.outputs != axis.inputs or axis.crop != (0, 1)]


def _resized(node: Node, axes: list[Axis], coordinates: str, rounding: str) -> relax.Expr:
    """Return the first operand, resized along one axis after the other."""
    mode, x = node.text("mode", "nearest"), node.operands[0]
    dtype, is_nearest = str(x.ty.dtype), mode == "nearest"
    if not is_nearest and "float" not in dtype:
        raise Refused(f"the mode {mode} for {dtype} is not supported", "resize floating-point numbers")
    antialias, excludes = (bool(node.attributes.get(key, 0)) for key in ("antialias", "exclude_outside"))
    narrow = not is_nearest and dtype in NARROW
    y = node.emit(relax.op.astype(x, "float32")) if narrow else x
    outside = {}
    if any(axis.is_open for axis in axes) and (excludes or coordinates not in PERIODIC):
        raise Refused("the shape of its input is known only when the model runs", OPEN_HINT)
    for axis in axes:
        repeats = axis.is_open or (_repeats(axis) and coordinates in PERIODIC and not excludes)
        if repeats:
            axis = replace(axis, inputs=SAMPLE, outputs=SAMPLE * int(axis.scale))
        at = _coordinates(axis, coordinates)
        if coordinates == "tf_crop_and_resize":
            outside[axis.place] = (at < 0) | (at > axis.inputs - 1)
        last = axis.inputs - 1
        if is_nearest and repeats:
            places = ROUNDINGS[rounding](at).astype(np.int64)[:, None]
            y = repeat(node.builder, y, axis.place, int(axis.scale), places, np.ones_like(places, np.float32))
            continue
        if is_nearest:
            y = gather(node.builder, y, axis.place, np.clip(ROUNDINGS[rounding](at), 0, last).astype(np.int64))
            continue
        if mode == "linear":
            places, weights = linear_taps(at, axis.scale, antialias)
        else:
            a = node.attributes.get("cubic_coeff_a", -0.75)
            places, weights = cubic_taps(at, axis.scale, antialias, a)
        if excludes:
            weights = np.where((places < 0) | (places > last), 0, weights)
            weights /= weights.sum(axis=1, keepdims=True)
        if repeats:
            y = repeat(node.builder, y, axis.place, int(axis.scale), places, weights)
        else:
            y = interpolate(node.builder, y, axis.place, np.clip(places, 0, last), weights)
    if any(mask.any() for mask in outside.values()):
        y = _extrapolated(node, y, outside)
    return relax.op.astype(y, dtype) if narrow else y


PERIODIC = ("asymmetric", "half_pixel", "pytorch_half_pixel")
"""The transformations in which the coordinates of outputs between the same two inputs are the same for any size."""


def _repeats(axis: Axis) -> bool:
    """Return whether there are as many outputs for each input, in the whole of it."""
    return axis.scale == int(axis.scale) and axis.outputs == axis.inputs * axis.scale and axis.crop == (0, 1)


def _coordinates(axis: Axis, transformation: str) -> Array:
    """Return the coordinate among the inputs of each output."""
    at = np.arange(axis.outputs, dtype=np.float64)
    inputs, length = axis.inputs, axis.scale * axis.inputs
    if transformation == "asymmetric":
        return at / axis.scale
    if transformation == "align_corners":
        return at * 0 if length == 1 else at * (inputs - 1) / (length - 1)
    if transformation == "tf_crop_and_resize":
        start, end = axis.crop
        if length == 1:
            return at * 0 + (end - start) * (inputs - 1) / 2 + start * (inputs - 1)
        return at * (end - start) * (inputs - 1) / (length - 1) + start * (inputs - 1)
    centers = (at + 0.5) / axis.scale - 0.5
    if transformation == "half_pixel":
        return centers
    if transformation == "pytorch_half_pixel":
        return centers * 0 - 0.5 if length == 1 else centers
    if transformation == "half_pixel_symmetric":
        return centers + inputs / 2 * (1 - axis.outputs / length)
    raise Refused(f"the coordinate_transformation_mode {transformation} is unknown")


def _extrapolated(node: Node, y: relax.Expr, outside: dict[int, Array]) -> relax.Expr:
    """Return y with the extrapolation_value where a coordinate is outside, as the masks of its axes tell."""
    rank, value = y.ty.ndim, relax.const(node.attributes.get("extrapolation_value", 0.0), y.ty.dtype)
    for place, mask in outside.items():
        shape = [-1 if axis == place else 1 for axis in range(rank)]
        y = node.emit(relax.op.where(relax.const(mask.reshape(shape)), value, y))
    return y


def _half(at: Array, up: bool) -> Array:
    """Return the nearest integers; of two that are equally near, the upper or the lower."""
    return np.floor(at + 0.5) if up else np.ceil(at - 0.5)


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": partial(_half, up=False),
    "round_prefer_ceil": partial(_half, up=True),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""The functions that round to the place of the nearest input, by nearest_mode."""
