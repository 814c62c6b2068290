"""Resampling along an axis: each output is the weighted sum of a few elements of the input.

NumPy computes indices and weights beforehand, as tables; of an open size, the same formulas do so in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvmconv.problem.dtypes import NARROW

from ...graph.constants import Array, sizes_of
from ...graph.faults import Refused
from ...sizes.facts import Size, as_expr
from ..builder import ImportBuilder

SAMPLE = 16
"""The number of inputs of a sample axis, from whose outputs those of any axis follow.

The outputs in its middle are far enough from both ends for all modes.
"""

MAX_TAPS = 4
"""The largest number of elements along an axis to look up and add one by one; more make a matrix product."""


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic on arrays of NumPy, or on expressions of TVM, of one floating-point type."""

    number: Callable[[Any], Any]
    """The function that makes a floating-point number of an integer or of one of Python."""
    floor: Callable[[Any], Any] = np.floor
    ceil: Callable[[Any], Any] = np.ceil
    absolute: Callable[[Any], Any] = np.abs
    larger: Callable[[Any, Any], Any] = np.maximum
    both: Callable[[Any, Any], Any] = np.logical_and
    choose: Callable[[Any, Any, Any], Any] = np.where


def of_numpy(dtype: str) -> Arithmetic:
    """Return the arithmetic on arrays."""
    return Arithmetic(np.dtype(dtype).type)


def of_tvm(dtype: str) -> Arithmetic:
    """Return the arithmetic on expressions."""

    def number(value: Any) -> tirx.Expr:
        return tirx.const(float(value), dtype) if isinstance(value, (int, float)) else value.astype(dtype)

    return Arithmetic(number, tirx.floor, tirx.ceil, tirx.abs, tirx.max, tirx.And, tirx.Select)


Formula = Callable[..., Any]
"""A function of an `Arithmetic`, indices of outputs in it, the sizes of input and output, and `Resampling.numbers`."""

REACHES = {"linear": 1, "cubic": 2, "lanczos": 3}
"""The distance in elements from which on the kernel of a mode is 0."""


@dataclass(frozen=True)
class Resampling:
    """Resampling along one axis."""

    axis: int
    outputs: Size
    """The size of the axis afterwards."""
    mode: str
    """The mode: "nearest", "linear", "cubic", or, for sizes that are numbers and with `step`, "lanczos"."""
    coordinate: Formula
    """The formula of the coordinate of an output among the elements of the input."""
    step: Callable[..., Any] | None = None
    """With antialias, the function of the number of inputs for each output; its arguments are those of `coordinate`
    without the indices."""
    rounded: Callable[[Arithmetic, Any], Any] = lambda arithmetic, at: arithmetic.floor(at)
    """The function that rounds a coordinate to the index of the nearest element."""
    coefficient: float = -0.75
    """The coefficient of cubic convolution, a number without unit."""
    excludes: bool = False
    """True if elements outside of the axis are left out; else the last element stands for those beyond it."""
    times: int | None = None
    """The number of outputs for each input, where all inputs have equally many at equal distances; else None."""
    dtype: str = "float32"
    """The type of coordinates and weights in a call."""
    table_dtype: str = "float32"
    """The type of coordinates and weights that are computed beforehand."""
    numbers: tuple[Any, ...] = ()
    """Further arguments of the formulas, numbers and expressions of sizes."""


def resampled(builder: ImportBuilder, x: relax.Expr, steps: Sequence[Resampling]) -> relax.Expr:
    """Return x resampled along one axis after the other, in float32 if it is of half precision.

    Raises `Refused` for integers, which only the mode "nearest" takes.
    """
    dtype = str(x.ty.dtype)
    is_narrow = any(step.mode != "nearest" for step in steps) and dtype in NARROW
    y = builder.cast(x, "float32") if is_narrow else x
    for resampling in steps:
        if resampling.mode != "nearest" and "float" not in dtype:
            raise Refused(f"the mode {resampling.mode} for {dtype} is not supported", "resample floating-point numbers")
        inputs = (sizes_of(y.ty) or ())[resampling.axis]
        if resampling.times is not None:
            y = y if resampling.times == 1 else _repeated(builder, y, resampling, resampling.times)
        elif not all(isinstance(each, (int, float)) for each in (inputs, resampling.outputs, *resampling.numbers)):
            y = (_smoothed if resampling.step else _by_formula)(builder, y, resampling)
        else:
            indices, weights = sampling_tables(resampling, inputs, resampling.outputs)
            indices = np.clip(indices, 0, inputs - 1)
            if weights is None:
                y = _gather(builder, y, resampling.axis, indices[:, 0])
            else:
                y = _weighted(builder, y, resampling.axis, indices, weights)
    return builder.cast(y, dtype)


# --- Formulas ---


def sampling_tables(resampling: Resampling, inputs: int, outputs: int) -> tuple[Array, Array | None]:
    """Return the indices of elements and their weights, (outputs, taps), for sizes that are numbers; None for 1."""
    arithmetic = of_numpy(resampling.table_dtype)
    output = arithmetic.number(np.arange(outputs))
    if resampling.step is None:
        taps = _taps(arithmetic, resampling, output, inputs, outputs, *resampling.numbers)
        weights = None if resampling.mode == "nearest" else np.stack([weight for _, weight in taps], 1)
        return np.stack([index for index, _ in taps], 1), weights
    of_outputs = output[:, None]
    first, count, weight = _kernel(arithmetic, resampling, of_outputs, inputs, outputs, *resampling.numbers)
    indices = first + np.arange(int(count))
    weights = weight(indices)
    if resampling.excludes:
        weights = np.where((indices >= 0) & (indices < inputs), weights, 0)
    return indices, weights / weights.sum(axis=1, keepdims=True)


def _taps(
    arithmetic: Arithmetic, resampling: Resampling, output: Any, inputs: Any, outputs: Any, *numbers: Any
) -> list[tuple[Any, Any]]:
    """Return the elements of an output: the index of each, perhaps outside the axis, and its weight, None for 1."""
    at = resampling.coordinate(arithmetic, output, inputs, outputs, *numbers)
    if resampling.mode == "nearest":
        return [(resampling.rounded(arithmetic, at).astype("int64"), None)]
    left = arithmetic.floor(at)
    part, first = at - left, left.astype("int64")
    if resampling.mode == "linear":
        taps = [(first, arithmetic.number(1) - part), (first + 1, part)]
    else:
        taps = [(first + i - 1, weight) for i, weight in enumerate(cubic_weights(part, resampling.coefficient))]
    if not resampling.excludes:
        return taps
    zero = arithmetic.number(0)
    inside = [(i, arithmetic.choose(arithmetic.both(i >= 0, i < inputs), weight, zero)) for i, weight in taps]
    total = reduce(lambda a, b: a + b, [weight for _, weight in inside])
    return [(i, weight / total) for i, weight in inside]


def _kernel(
    arithmetic: Arithmetic, resampling: Resampling, output: Any, inputs: Any, outputs: Any, *numbers: Any
) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Return the first element of an output, the largest number of elements, and a function that returns their weights.

    The kernel is stretched by the number of inputs for each output; elements may be outside the axis.
    """
    assert resampling.step is not None
    at = resampling.coordinate(arithmetic, output, inputs, outputs, *numbers)
    one = arithmetic.number(1)
    width = arithmetic.larger(resampling.step(arithmetic, inputs, outputs, *numbers), one)
    support = arithmetic.number(REACHES[resampling.mode]) * width
    first, end = (arithmetic.floor(at + one + reach).astype("int64") for reach in (-support, support))

    def weight(index: Any) -> Any:
        distance = arithmetic.absolute((arithmetic.number(index) - at) / width)
        return arithmetic.choose(index < end, _shape(arithmetic, resampling, distance), arithmetic.number(0))

    return first, 2 * arithmetic.ceil(support).astype("int64") + 1, weight


def _shape(arithmetic: Arithmetic, resampling: Resampling, distance: Any) -> Any:
    """Return the weight of an element by its distance, which is at least 0."""
    zero, one = arithmetic.number(0), arithmetic.number(1)
    if resampling.mode == "linear":
        return arithmetic.larger(one - distance, zero)
    if resampling.mode == "lanczos":
        return np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0)
    near, far = _cubic_pieces(distance, resampling.coefficient)
    return arithmetic.choose(distance < one, near, arithmetic.choose(distance < arithmetic.number(2), far, zero))


def cubic_weights(fraction: Any, a: float) -> list[Any]:
    """Return the weights of the four elements around a coordinate, by its distance from the second one."""
    (_, first), (second, _) = _cubic_pieces(fraction + 1, a), _cubic_pieces(fraction, a)
    (third, _), (_, fourth) = _cubic_pieces(1 - fraction, a), _cubic_pieces(2 - fraction, a)
    return [first, second, third, fourth]


def _cubic_pieces(d: Any, a: float) -> tuple[Any, Any]:
    """Return the weights of cubic convolution by a distance below 1, and by one from 1 to 2."""
    return ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


# --- Functions of tensors ---


def _gather(builder: relax.BlockBuilder, x: relax.Expr, axis: int, indices: Array) -> relax.Expr:
    """Return the elements of x at some indices along an axis, (outputs,); x itself for all elements in order.

    Before: `x` of shape (1, 8, 2) and indices (0, 0, 1, 1) of axis 2. After: (1, 8, 4).
    """
    inputs, outputs = int(x.ty.shape[axis]), len(indices)
    if np.array_equal(indices, np.arange(inputs)):
        return x
    # TVM reads a table for indices that are no expression of the output's.
    is_even = np.array_equal(indices, np.arange(outputs) * inputs // max(outputs, 1))

    def compute(x: te.Tensor, *tables: te.Tensor) -> te.Tensor:
        return _sums(x, axis, outputs, lambda i: [(tables[0][i] if tables else i * inputs // outputs, None)])

    tables = [] if is_even else [relax.const(indices.astype("int32"))]
    return builder.emit_te(compute, x, *tables, primfunc_name_hint="gather")


def _weighted(builder: relax.BlockBuilder, x: relax.Expr, axis: int, indices: Array, weights: Array) -> relax.Expr:
    """Return weighted sums of elements of x along an axis, (outputs, taps); a matrix product if they are many.

    Before: `x` (1, 8, 2), indices (0, 1) and weights (0.5, 0.5) of one output. After: (1, 8, 1), the mean of the two.
    """
    inputs, outputs = int(x.ty.shape[axis]), len(indices)
    matrix = np.zeros((inputs, outputs), weights.dtype)
    np.add.at(matrix, (indices, np.arange(outputs)[:, None]), weights)
    if inputs == outputs and np.array_equal(matrix, np.eye(inputs)):
        return x
    is_used = (weights != 0).any(axis=0)
    if is_used.sum() > MAX_TAPS:
        order = [*(each for each in range(x.ty.ndim) if each != axis), axis]
        factor = relax.const(matrix.astype(str(x.ty.dtype)))
        product = builder.emit(relax.op.matmul(builder.emit(relax.op.permute_dims(x, order)), factor))
        return builder.emit(relax.op.permute_dims(product, [int(i) for i in np.argsort(order)]))

    def compute(x: te.Tensor, indices: te.Tensor, weights: te.Tensor) -> te.Tensor:
        last, taps = tirx.const(inputs - 1, "int32"), range(int(is_used.sum()))
        # A table tells TVM no bounds, without which it would index with 64 bits.
        return _sums(
            x, axis, outputs, lambda i: [(te.max(te.min(indices[i, tap], last), 0), weights[i, tap]) for tap in taps]
        )

    tables = [indices[:, is_used].astype("int32"), weights[:, is_used].astype("float32")]
    return builder.emit_te(compute, x, *map(relax.const, tables), primfunc_name_hint="interpolate")


def _repeated(builder: relax.BlockBuilder, x: relax.Expr, resampling: Resampling, times: int) -> relax.Expr:
    """Return weighted sums of elements of x along an axis of any size, `times` of them for each element.

    Before: `x` of two elements a, b, and `times` 2 with the weights (0.25, 0.75), (0.75, 0.25). After:
    `y[i] = x[max((i + 1) // 2 - 1, 0)] * w + x[min((i + 1) // 2, 1)] * (1 - w)`, with w by `(i + 1) % 2`.
    """
    # In the middle of a sample, elements have the same distances from the output, and weights, as on any axis.
    indices, weights = sampling_tables(replace(resampling, table_dtype="float64"), SAMPLE, SAMPLE * times)
    weights = np.ones_like(indices) if weights is None else weights
    middle = len(indices) // 2
    first = next(row for row in range(middle, middle + times) if indices[row, 0] != indices[row - 1, 0])
    shift = -first % times  # from one multiple of `times` to the next, outputs then have the same elements
    distances = (indices[first] - (first + shift) // times).tolist()
    shares = weights[first : first + times].T

    def compute(x: te.Tensor) -> te.Tensor:
        size = x.shape[resampling.axis]

        def taps(output: tirx.Expr) -> Iterator[tuple[tirx.Expr, tirx.Expr | None]]:
            base, phase = (output + shift) // times, (output + shift) % times
            for distance, share in zip(distances, shares, strict=True):
                source = base + distance
                source = te.min(source, size - 1) if distance + (shift > 0) > 0 else source
                source = te.max(source, 0) if distance < 0 else source
                yield source, None if (share == 1).all() else _by_phase(phase, share, x.dtype)

        return _sums(x, resampling.axis, size * times, taps)

    return builder.emit_te(compute, x, primfunc_name_hint="repeat")


def _by_formula(builder: relax.BlockBuilder, x: relax.Expr, resampling: Resampling) -> relax.Expr:
    """Return weighted sums of a few elements of x along an axis of any size."""
    arithmetic = of_tvm(resampling.dtype)

    def compute(x: te.Tensor, outputs: Any, *numbers: Any) -> te.Tensor:
        size = x.shape[resampling.axis]

        def taps(output: tirx.Expr) -> Iterator[tuple[tirx.Expr, tirx.Expr | None]]:
            at = arithmetic.number(output)
            for index, weight in _taps(arithmetic, resampling, at, size, as_expr(outputs), *numbers):
                yield te.max(te.min(index.astype(size.ty.dtype), size - 1), 0), weight

        return _sums(x, resampling.axis, outputs, taps)

    return builder.emit_te(compute, x, resampling.outputs, *resampling.numbers, primfunc_name_hint="resample")


def _smoothed(builder: relax.BlockBuilder, x: relax.Expr, resampling: Resampling) -> relax.Expr:
    """Return means of x along an axis of any size, weighted by a kernel, which leaves elements outside the axis out."""
    axis, arithmetic = resampling.axis, of_tvm(resampling.dtype)

    def compute(x: te.Tensor, outputs: Any, *numbers: Any) -> te.Tensor:
        size, zero = x.shape[axis], tirx.const(0.0, x.dtype)

        def kernel(output: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, Callable[[tirx.Expr], tirx.Expr]]:
            return _kernel(arithmetic, resampling, arithmetic.number(output), size, as_expr(outputs), *numbers)

        def total(name: str, shape: Sequence[tirx.Expr], axis: int, of: Callable[..., tirx.Expr]) -> te.Tensor:
            tap = te.reduce_axis((0, kernel(as_expr(0))[1]), "tap")

            def element(*at: tirx.Var) -> tirx.Expr:
                first, _, weight = kernel(at[axis])
                index = first + tap
                term = of(at, index, weight(index).astype(x.dtype))
                return te.sum(tirx.if_then_else(te.all(index >= 0, index < size), term, zero), axis=tap)

            return te.compute(shape, element, name)

        shape = _resized(x.shape, axis, outputs)
        whole = total("whole", [outputs], 0, lambda at, index, weight: weight)
        sums = total("sums", shape, axis, lambda at, index, weight: x(*at[:axis], index, *at[axis + 1 :]) * weight)
        return te.compute(shape, lambda *at: sums(*at) / whole[at[axis]])

    return builder.emit_te(compute, x, resampling.outputs, *resampling.numbers, primfunc_name_hint="smoothed")


def _by_phase(phase: tirx.Expr, numbers: Array, dtype: str) -> tirx.Expr:
    """Return the number at the index `phase`: by a formula where the numbers lie on a line."""
    step = float(numbers[-1] - numbers[0]) / max(len(numbers) - 1, 1)
    if np.allclose(numbers, numbers[0] + step * np.arange(len(numbers)), rtol=0, atol=1e-9):
        return phase.astype(dtype) * tirx.const(step, dtype) + tirx.const(float(numbers[0]), dtype)
    value = tirx.const(float(numbers[-1]), dtype)
    for index in reversed(range(len(numbers) - 1)):
        value = tirx.Select(phase == index, tirx.const(float(numbers[index]), dtype), value)
    return value


def _sums(x: te.Tensor, axis: int, outputs: Any, taps: Callable[[tirx.Expr], Iterable[Any]]) -> te.Tensor:
    """Return weighted sums of x along an axis; `taps` returns indices and weights for an output, None for 1."""

    def element(*at: tirx.Var) -> tirx.Expr:
        terms = []
        for index, weight in taps(at[axis]):
            term = x(*at[:axis], index, *at[axis + 1 :])
            terms.append(term if weight is None else term * weight.astype(x.dtype))
        return reduce(lambda a, b: a + b, terms)

    return te.compute(_resized(x.shape, axis, outputs), element, tag=topi.tag.INJECTIVE)


def _resized(shape: Sequence[tirx.Expr], axis: int, size: int) -> list[tirx.Expr]:
    return [size if index == axis else each for index, each in enumerate(shape)]
