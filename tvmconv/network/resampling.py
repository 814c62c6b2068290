"""Resampling along an axis: each output is the weighted sum of a few elements of the input.

NumPy makes the tables of elements and weights beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import floor

import numpy as np
from tvm import relax, te, tirx, topi

from .constants import Array


def gather(builder: relax.BlockBuilder, x: relax.Expr, axis: int, places: Array) -> relax.Expr:
    """Return the elements of x at some places along an axis, where `places` is (outputs,).

    Before: `x` of shape (1, 8, 2) and places (0, 0, 1, 1) of axis 2. After: (1, 8, 4).
    """
    inputs, outputs = int(x.ty.shape[axis]), len(places)
    # TVM reads a table for places that are no expression of the output's.
    is_even = np.array_equal(places, np.arange(outputs) * inputs // max(outputs, 1))
    tables = [] if is_even else [relax.const(places.astype("int32"))]

    def compute(x: te.Tensor, *tables: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.Expr:
            place = tables[0][at[axis]] if tables else at[axis] * inputs // outputs
            return x(*at[:axis], place, *at[axis + 1 :])

        return te.compute(_resized(x.shape, axis, outputs), element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, x, *tables, primfunc_name_hint="gather")


def interpolate(builder: relax.BlockBuilder, x: relax.Expr, axis: int, places: Array, weights: Array) -> relax.Expr:
    """Return weighted sums of elements of x along an axis, where `places` and `weights` are (outputs, taps).

    Before: `x` (1, 8, 2), places (0, 1) and weights (0.5, 0.5) of one output. After: (1, 8, 1), the mean of the two.
    """
    taps = range(places.shape[1])
    tables = [relax.const(places.astype("int32")), relax.const(weights.astype("float32"))]

    def compute(x: te.Tensor, places: te.Tensor, weights: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.Expr:
            output = at[axis]
            terms = [
                x(*at[:axis], places[output, tap], *at[axis + 1 :]) * weights[output, tap].astype(x.dtype)
                for tap in taps
            ]
            return reduce(lambda a, b: a + b, terms)

        return te.compute(_resized(x.shape, axis, places.shape[0]), element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, x, *tables, primfunc_name_hint="interpolate")


def repeat(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, scale: int, places: Array, weights: Array
) -> relax.Expr:
    """Return weighted sums of elements of x along an axis of any size, `scale` of them for each element.

    `places` and `weights` are (outputs, taps) for a sample of as many elements as are needed: in the middle, they say
    how far the elements of each of the `scale` sums are. At the ends, the last element stands for those beyond it.
    """
    middle = len(places) // scale // 2
    rows = slice(middle * scale, (middle + 1) * scale)
    distances, shares = places[rows] - middle, weights[rows]

    def compute(x: te.Tensor) -> te.Tensor:
        inputs = x.shape[axis]

        def element(*at: tirx.Var) -> tirx.Expr:
            place, phase = at[axis] // scale, at[axis] % scale

            def total(row: int) -> tirx.Expr:
                terms = []
                for distance, share in zip(distances[row].tolist(), shares[row].tolist(), strict=True):
                    source = te.max(te.min(place + distance, inputs - 1), 0) if distance else place
                    term = x(*at[:axis], source, *at[axis + 1 :])
                    terms += [] if share == 0 else [term if share == 1 else term * tirx.const(share, x.dtype)]
                return reduce(lambda a, b: a + b, terms)

            value = total(scale - 1)
            for row in reversed(range(scale - 1)):
                value = tirx.if_then_else(phase == row, total(row), value)
            return value

        return te.compute(_resized(x.shape, axis, inputs * scale), element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, x, primfunc_name_hint="repeat")


def _resized(shape: Sequence[tirx.Expr], axis: int, size: int) -> list[tirx.Expr]:
    return [size if place == axis else each for place, each in enumerate(shape)]


def linear_taps(at: Array, scale: float, antialias: bool) -> tuple[Array, Array]:
    """Return places and weights, (outputs, taps), of linear interpolation at coordinates, (outputs,).

    `scale` is how many outputs there are for an input; `antialias` widens the kernel where they are fewer.
    """
    narrow = min(scale, 1.0) if antialias else 1.0
    places, distances = _taps(at, floor(-1 / narrow) + 1)
    weights = np.clip(1 - np.abs(distances * narrow), 0, 1)
    return places, weights / weights.sum(axis=1, keepdims=True) if antialias else weights


def cubic_taps(at: Array, scale: float, antialias: bool, a: float) -> tuple[Array, Array]:
    """Return places and weights, (outputs, taps), of cubic convolution with the coefficient `a`."""
    narrow = min(scale, 1.0) if antialias else 1.0
    places, distances = _taps(at, floor(-2 / narrow) + 1)
    d = np.abs(distances * narrow)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weights = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return places, weights / weights.sum(axis=1, keepdims=True) if antialias else weights


def _taps(at: Array, first: int) -> tuple[Array, Array]:
    """Return the places around each coordinate, from `first` to as many on the other side, and their distances from it.

    A coordinate that is a place itself counts to the left of it.
    """
    left = np.ceil(at) - 1
    places = left[:, None] + np.arange(first, 2 - first)
    return places.astype(np.int64), places - at[:, None]
