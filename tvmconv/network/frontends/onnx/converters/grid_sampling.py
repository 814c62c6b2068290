"""The converter of GridSample: samples of a tensor at positions that another tensor has, as in spatial transformers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from tvm import relax, te, tirx
from tvm.ir import Expr

from tvmconv.network.graph.faults import Refused

from ...shared.resampling import cubic_weights
from ..node import Node

MODES, PADDINGS = ("nearest", "linear", "cubic"), ("zeros", "border", "reflection")
CUBIC = -0.75
"""The coefficient of cubic convolution, a number without unit."""


def grid_sample(node: Node) -> relax.Expr:
    """Convert GridSample, of planes and of volumes."""
    mode, padding = node.text("mode", "linear").removeprefix("bi"), node.text("padding_mode", "zeros")
    if mode not in MODES or padding not in PADDINGS:
        raise Refused(f"the mode {mode} with {padding} is unknown")
    align_corners = bool(node.attributes.get("align_corners", 0))
    x, grid = node.operands
    return _sample(node.builder, x, grid, mode, padding, align_corners)


class Tap(NamedTuple):
    """An element beside a coordinate along one axis, with its weight."""

    index: Expr
    """The index of the element, an integer in floating point; it may be outside the axis."""
    weight: Expr


def _sample(
    builder: relax.BlockBuilder, x: relax.Expr, grid: relax.Expr, mode: str, padding: str, align_corners: bool
) -> relax.Expr:
    """Return x (N, C, *sizes) sampled at the coordinates in grid (N, *outputs, axes).

    Coordinates are from -1 to 1, from end to end; the one for the last axis of x comes first. `mode` is one of `MODES`,
    `padding`, for coordinates outside of x, one of `PADDINGS`; -1 and 1 are the centers of the elements at the ends if
    `align_corners`, and else their outer edges.
    """

    def compute(x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        sizes = x.shape[2:]

        def element(n: Expr, c: Expr, *at: Expr) -> Expr:
            taps = []
            for axis, size in enumerate(sizes):
                coordinate = grid(n, *at, len(sizes) - 1 - axis).astype("float32")
                length = size.astype("float32")
                if align_corners:
                    coordinate = (coordinate + 1.0) / 2.0 * (length - 1.0)
                else:
                    coordinate = ((coordinate + 1.0) * length - 1.0) / 2.0
                if padding != "zeros" and mode == "linear":
                    coordinate = _inside(coordinate, length, padding, align_corners)
                taps.append(_taps(coordinate, mode))
            total = tirx.const(0.0, "float32")
            for chosen in product(*taps):
                total = total + _element(x, (n, c), chosen, padding, align_corners) * prod(
                    (tap.weight for tap in chosen), start=tirx.const(1.0, "float32")
                )
            return total.astype(x.dtype)

        return te.compute([*x.shape[:2], *grid.shape[1:-1]], element)

    return builder.emit_te(compute, x, grid, primfunc_name_hint="grid_sample")


def _taps(coordinate: Expr, mode: str) -> list[Tap]:
    """Return the elements along an axis, with their weights, that make up the value at a coordinate."""
    one = tirx.const(1.0, "float32")
    if mode == "nearest":
        return [Tap(tirx.nearbyint(coordinate), one)]
    left = tirx.floor(coordinate)
    ratio = coordinate - left
    if mode == "linear":
        return [Tap(left, one - ratio), Tap(left + one, ratio)]
    return [Tap(left + float(i - 1), weight) for i, weight in enumerate(cubic_weights(ratio, CUBIC))]


def _element(x: te.Tensor, first: Sequence[Expr], taps: Sequence[Tap], padding: str, align_corners: bool) -> Expr:
    """Return an element of x, which may be outside, as float32."""
    conditions, indices = [], []
    for tap, size in zip(taps, x.shape[2:], strict=True):
        length = size.astype("float32")
        index = tap.index
        if padding == "zeros":
            conditions.append(te.all(index >= 0.0, index <= length - 1.0))
        else:
            index = _inside(index, length, padding, align_corners)
        indices.append(_clamped(index, length).astype("int32"))
    value = x(*first, *indices).astype("float32")
    return tirx.Select(te.all(*conditions), value, tirx.const(0.0, "float32")) if conditions else value


def _inside(coordinate: Expr, length: Expr, padding: str, align_corners: bool) -> Expr:
    """Return a coordinate moved into the axis: to its end, or reflected at its ends until it is inside."""
    if padding == "border":
        return _clamped(coordinate, length)
    low = tirx.const(0.0 if align_corners else -0.5, "float32")
    span = tirx.max(length - 1.0 if align_corners else length, tirx.const(1e-30, "float32"))
    distance = tirx.abs(coordinate - low)
    turns = tirx.floor(distance / span)
    rest = distance - turns * span
    is_even = tirx.floor(turns / 2.0) * 2.0 == turns
    return _clamped(tirx.Select(is_even, low + rest, low + span - rest), length)


def _clamped(coordinate: Expr, length: Expr) -> Expr:
    """Return a coordinate clipped to the ends of the axis; the first end for NaN."""
    return tirx.min(tirx.max(coordinate, tirx.const(0.0, "float32")), length - 1.0)
