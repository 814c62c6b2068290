"""Resampling along an axis: each output is the weighted sum of a few elements of the input.

NumPy makes the tables of elements and weights beforehand; of an open size, formulas take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import floor
from typing import Any, TypeAlias

import numpy as np
from tvm import relax, te, tirx, topi

from ..graph.constants import Array
from ..sizes.facts import Size

Taps: TypeAlias = Callable[..., Sequence[tuple[tirx.Expr, tirx.Expr | None]]]
"""A function that returns the elements and weights of an output: see `by_formula`."""

Kernel: TypeAlias = Callable[..., tuple[tirx.Expr, tirx.Expr, Callable[[tirx.Expr], tirx.Expr]]]
"""A function that returns the elements of an output and their weights: see `smoothed`."""

SAMPLE = 16
"""The number of inputs from which it is read how outputs follow from any number of them.

The middle ones are far enough from both ends for all modes.
"""


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
            output, last = at[axis], tirx.const(int(x.shape[axis]) - 1, "int32")
            # A table tells TVM no bounds, without which it would index with 64 bits.
            found = [te.max(te.min(places[output, tap], last), 0) for tap in taps]
            terms = [
                x(*at[:axis], place, *at[axis + 1 :]) * weights[output, tap].astype(x.dtype)
                for tap, place in zip(taps, found, strict=True)
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

    Before: `x` of two elements a, b, and `scale` 2 with the weights (0.25, 0.75), (0.75, 0.25). After:
    `y[i] = x[max((i + 1) // 2 - 1, 0)] * w + x[min((i + 1) // 2, 1)] * (1 - w)`, with w by `(i + 1) % 2`.
    """
    middle = len(places) // 2
    first = next(row for row in range(middle, middle + scale) if places[row, 0] != places[row - 1, 0])
    shift = -first % scale  # from one multiple of the scale to the next, outputs then have the same places
    distances = (places[first] - (first + shift) // scale).tolist()
    shares = weights[first : first + scale].T

    def compute(x: te.Tensor) -> te.Tensor:
        last = x.shape[axis] - 1

        def element(*at: tirx.Var) -> tirx.Expr:
            place, phase = (at[axis] + shift) // scale, (at[axis] + shift) % scale
            terms = []
            for distance, share in zip(distances, shares, strict=True):
                source = place + distance
                source = te.min(source, last) if distance + (shift > 0) > 0 else source
                source = te.max(source, 0) if distance < 0 else source
                term = x(*at[:axis], source, *at[axis + 1 :])
                terms.append(term if (share == 1).all() else term * _by_phase(phase, share, x.dtype))
            return reduce(lambda a, b: a + b, terms)

        return te.compute(_resized(x.shape, axis, x.shape[axis] * scale), element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, x, primfunc_name_hint="repeat")


def by_formula(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, outputs: Size, taps: Taps, *numbers: Any
) -> relax.Expr:
    """Return weighted sums of a few elements of x along an axis of any size.

    `taps` returns the elements of one output: the index of each, which is moved into the axis, and its weight, None for
    1. Its arguments are the output's index, the sizes of input and output, and the numbers, which may be expressions.
    """

    def compute(x: te.Tensor, outputs: Any, *numbers: Any) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.Expr:
            last = x.shape[axis] - 1
            terms = []
            for index, weight in taps(at[axis], x.shape[axis], _as_index(outputs), *numbers):
                inside = te.max(te.min(index.astype(last.ty.dtype), last), 0)
                term = x(*at[:axis], inside, *at[axis + 1 :])
                terms.append(term if weight is None else term * weight.astype(x.dtype))
            return reduce(lambda a, b: a + b, terms)

        return te.compute(_resized(x.shape, axis, outputs), element, tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, x, outputs, *numbers, primfunc_name_hint="resample")


def smoothed(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, outputs: Size, kernel: Kernel, *numbers: Any
) -> relax.Expr:
    """Return means of x along an axis of any size, weighted by a kernel, which leaves elements outside the axis out.

    `kernel` returns for an output the index of the first element, perhaps one before the axis, the largest number of
    elements for any output, and a function that returns the weight of an element, by its index. Its arguments are those
    of `by_formula`'s `taps`.
    """

    def compute(x: te.Tensor, outputs: Any, *numbers: Any) -> te.Tensor:
        size, zero = x.shape[axis], tirx.const(0.0, x.dtype)

        def total(name: str, shape: Sequence[tirx.Expr], axis: int, of: Callable[..., tirx.Expr]) -> te.Tensor:
            (_, taps, _) = kernel(tirx.const(0, "int64"), size, _as_index(outputs), *numbers)
            tap = te.reduce_axis((0, taps), "tap")

            def element(*at: tirx.Var) -> tirx.Expr:
                first, _, weight = kernel(at[axis], size, _as_index(outputs), *numbers)
                index = first + tap
                inside = te.all(index >= 0, index < size)
                term = of(at, index, weight(index).astype(x.dtype))
                return te.sum(tirx.if_then_else(inside, term, zero), axis=tap)

            return te.compute(shape, element, name)

        shape = _resized(x.shape, axis, outputs)
        whole = total("whole", [outputs], 0, lambda at, index, weight: weight)
        sums = total("sums", shape, axis, lambda at, index, weight: x(*at[:axis], index, *at[axis + 1 :]) * weight)
        return te.compute(shape, lambda *at: sums(*at) / whole[at[axis]])

    return builder.emit_te(compute, x, outputs, *numbers, primfunc_name_hint="smoothed")


def _as_index(size: Any) -> tirx.Expr:
    return tirx.const(size, "int64") if isinstance(size, int) else size


def cubic_kernel(distance: tirx.Expr, a: float) -> tirx.Expr:
    """Return the weight of an element of cubic convolution with the coefficient `a` by its distance, at least 0."""
    near, far = _cubic_pieces(distance, a)
    return tirx.Select(distance < 1, near, tirx.Select(distance < 2, far, tirx.const(0.0, distance.ty.dtype)))


def cubic_weights(fraction: tirx.Expr, a: float) -> list[tirx.Expr]:
    """Return the weights of the four elements around a coordinate, by its distance from the second one."""
    (_, first), (second, _) = _cubic_pieces(fraction + 1, a), _cubic_pieces(fraction, a)
    (third, _), (_, fourth) = _cubic_pieces(1 - fraction, a), _cubic_pieces(2 - fraction, a)
    return [first, second, third, fourth]


def _cubic_pieces(d: tirx.Expr, a: float) -> tuple[tirx.Expr, tirx.Expr]:
    """Return the weights of cubic convolution by a distance below 1, and by one from 1 to 2."""
    return ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def _by_phase(phase: tirx.Expr, numbers: Array, dtype: str) -> tirx.Expr:
    """Return one of some numbers by its place: by a formula where they lie on a line."""
    step = float(numbers[-1] - numbers[0]) / max(len(numbers) - 1, 1)
    if np.allclose(numbers, numbers[0] + step * np.arange(len(numbers)), rtol=0, atol=1e-9):
        return phase.astype(dtype) * tirx.const(step, dtype) + tirx.const(float(numbers[0]), dtype)
    value = tirx.const(float(numbers[-1]), dtype)
    for place in reversed(range(len(numbers) - 1)):
        value = tirx.Select(phase == place, tirx.const(float(numbers[place]), dtype), value)
    return value


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
