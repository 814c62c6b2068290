"""Pooling: by Relax's operators where these count the same elements as the model, and by loops over windows elsewhere.

Functions take images (batch, channels, *size), with any axes in front of the size, and the windows of each axis of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

from tvm import relax, te, tirx

from tvmconv.problem.dtypes import NARROW

from ...graph.faults import Refused
from ...sizes.facts import Size, as_expr, is_number, product


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, at equal distances, along one axis."""

    inputs: Size
    """The number of elements along the axis."""
    outputs: Size
    """The number of windows."""
    kernel: int
    """The number of elements of a window."""
    stride: int
    dilation: int
    before: Size
    """The padding in front, in elements."""
    after: Size
    """The padding behind, in elements, as the model gives it; windows may reach beyond it."""
    rounds_up: bool = False
    """True if the last window may reach beyond the padding."""

    @property
    def padding(self) -> tuple[int, int] | None:
        """The padding that windows reach, in front and behind; None where it depends on an open size."""
        if not (isinstance(self.before, int) and isinstance(self.after, int)):
            return None
        if isinstance(self.inputs, int) and isinstance(self.outputs, int):
            end = (self.outputs - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
            return self.before, max(0, end - self.before - self.inputs)
        return None if self.rounds_up else (self.before, self.after)

    def counts_as_relax(self, include_padding: bool) -> bool:
        """Return whether Relax divides the sum of each window by the number of elements that the model counts."""
        if self.padding is None:
            return False
        if include_padding:
            return isinstance(self.after, int) and self.padding[1] <= self.after
        return self.dilation == 1

    @property
    def max_taps(self) -> Any:
        """The largest number of elements of a window."""
        return self.kernel

    def index(self, output: tirx.Expr, tap: tirx.Expr) -> tirx.Expr:
        """Return the index of one element of a window."""
        return output * self.stride - self.before + tap * self.dilation

    def contains(self, output: tirx.Expr, index: tirx.Expr) -> tirx.Expr:
        """Return whether a window has an element: it is in the input, and not behind the window."""
        return tirx.all(index >= 0, index < self.inputs)

    def count(self, output: tirx.Expr, include_padding: bool) -> tirx.Expr:
        """Return the number of elements of a window that are in the input, or in it and the model's padding."""
        start = output * self.stride - self.before

        def elements_before(end: Any) -> tirx.Expr:
            distance = tirx.max(end - start, as_expr(0))
            return tirx.min((distance + self.dilation - 1) // self.dilation, as_expr(self.kernel))

        if include_padding:
            return elements_before(self.inputs + self.after)
        return elements_before(self.inputs) - elements_before(as_expr(0))


@dataclass(frozen=True)
class Adaptive:
    """Windows along one axis that cover the input, however many they are; methods are as those of `Sliding`."""

    inputs: Size
    outputs: Size
    padding = None

    def counts_as_relax(self, include_padding: bool) -> bool:
        return isinstance(self.inputs, int) and isinstance(self.outputs, int)

    @property
    def max_taps(self) -> Any:
        return self.inputs // self.outputs + 2

    def index(self, output: tirx.Expr, tap: tirx.Expr) -> tirx.Expr:
        return output * self.inputs // self.outputs + tap

    def contains(self, output: tirx.Expr, index: tirx.Expr) -> tirx.Expr:
        return index < self._end(output)

    def count(self, output: tirx.Expr, include_padding: bool) -> tirx.Expr:
        return self._end(output) - output * self.inputs // self.outputs

    def _end(self, output: tirx.Expr) -> tirx.Expr:
        return ((output + 1) * self.inputs + self.outputs - 1) // self.outputs


Windows: TypeAlias = Sequence[Sliding | Adaptive]
"""The windows along each of the last axes."""


def max_pool(builder: relax.BlockBuilder, x: relax.Expr, windows: Windows) -> relax.Expr:
    """Return the largest element of each window."""
    if all(window.padding for window in windows):
        return _by_relax(builder, "max_pool", x, windows)

    def largest(x: te.Tensor, windows: Windows) -> te.Tensor:
        lowest = te.min_value(x.dtype)
        return _reduced(x, windows, te.max, lambda at, index, has: tirx.if_then_else(has, x(*index), lowest))

    return _emitted(builder, largest, [x], windows, "max_pool")


def average_pool(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    windows: Windows,
    include_padding: bool = False,
    divisor: int | None = None,
) -> relax.Expr:
    """Return the mean of each window, over its elements in the input, or in its padding as well.

    With a `divisor`, the sum of the window's elements divided by that. Sums of half precision are in float32.
    """
    are_whole = all(isinstance(window, Adaptive) and is_number(window.outputs, 1) for window in windows)
    if are_whole or (divisor is None and all(window.counts_as_relax(include_padding) for window in windows)):
        if isinstance(windows[0], Adaptive):
            return _by_relax(builder, "adaptive_avg_pool", x, windows)
        return _by_relax(builder, "avg_pool", x, windows, count_include_pad=include_padding)
    if "float" not in str(x.ty.dtype):
        raise Refused("such means of integers are not supported")

    def means(x: te.Tensor, windows: Windows) -> te.Tensor:
        dtype = "float32" if str(x.dtype) in NARROW else str(x.dtype)
        zero = tirx.const(0, dtype)
        sums = _reduced(
            x, windows, te.sum, lambda at, index, has: tirx.if_then_else(has, x(*index).astype(dtype), zero)
        )

        def mean(*at: tirx.Var) -> tirx.Expr:
            outputs = zip(windows, at[-len(windows) :], strict=True)
            counts = [tirx.max(window.count(output, include_padding), 1) for window, output in outputs]
            count = tirx.const(divisor, "int64") if divisor else reduce(lambda a, b: a * b, counts)
            return (sums(*at) / count.astype(dtype)).astype(x.dtype)

        return te.compute(sums.shape, mean, "means")

    return _emitted(builder, means, [x], windows, "avg_pool")


def indices_of_maxima(builder: relax.BlockBuilder, x: relax.Expr, largest: relax.Expr, windows: Windows) -> relax.Expr:
    """Return for each window the index of its first element that is the largest, counted through the last axes of x.

    Before: `x` (1, 1, 2, 4), largest in its last two columns at `x[0, 0, 1, 2]`. After: 6 for a window of these.
    """

    def indices(x: te.Tensor, largest: te.Tensor, windows: Windows) -> te.Tensor:
        sizes = [as_expr(window.inputs) for window in windows]
        beyond = as_expr(product(sizes))

        def candidate(at: Sequence[tirx.Var], index: Sequence[tirx.Expr], has: tirx.Expr) -> tirx.Expr:
            flat = flat_index(index[-len(windows) :], sizes)
            # A window that has NaN has it as its largest element.
            is_largest = tirx.any(x(*index) == largest(*at), _is_nan(x(*index)))
            return tirx.if_then_else(has, tirx.Select(is_largest, flat, beyond), beyond)

        return _reduced(x, windows, te.min, candidate)

    return _emitted(builder, indices, [x, largest], windows, "indices_of_maxima")


def flat_index(index: Sequence[tirx.Expr], sizes: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the index of an element among all of an array, in int64, for its indices along axes of these sizes."""
    return reduce(lambda flat, pair: flat * pair[1] + pair[0], zip(index, sizes, strict=True), as_expr(0))


def _by_relax(builder: relax.BlockBuilder, name: str, x: relax.Expr, windows: Windows, **attributes: Any) -> relax.Expr:
    """Return Relax's pooling of a name, of images or of one image without a batch."""
    rank = len(windows)
    operator = getattr(relax.op.nn, f"{name}{rank}d")
    is_single = x.ty.ndim == rank + 1
    image = builder.emit(relax.op.expand_dims(x, 0)) if is_single else x
    paddings = [window.padding for window in windows if window.padding]
    if not paddings:
        y = operator(image, [window.outputs for window in windows])
    else:
        front, behind = zip(*paddings, strict=True)
        kernels, strides, dilations = (
            [getattr(window, name) for window in windows] for name in ("kernel", "stride", "dilation")
        )
        y = operator(image, kernels, strides, [*front, *behind], dilations, **attributes)
    return relax.op.squeeze(builder.emit(y), [0]) if is_single else y


def _emitted(
    builder: relax.BlockBuilder,
    computation: Callable[..., te.Tensor],
    tensors: Sequence[relax.Expr],
    windows: Windows,
    name: str,
) -> relax.Expr:
    """Emit a function of tensors and of windows, whose sizes are those of a call in it."""
    names = ("outputs", "before", "after") if isinstance(windows[0], Sliding) else ("outputs",)

    def compute(*operands: Any) -> te.Tensor:
        *tensors, numbers = operands
        inputs = list(tensors[0].shape)[-len(windows) :]
        pairs = zip(windows, inputs, numbers, strict=True)
        in_call: Any = [
            replace(window, inputs=size, **{name: as_expr(each) for name, each in given.items()})
            for window, size, given in pairs
        ]
        return computation(*tensors, in_call)

    numbers = [{name: getattr(window, name) for name in names} for window in windows]
    return builder.emit_te(compute, *tensors, numbers, primfunc_name_hint=name)


def _reduced(
    x: te.Tensor, windows: Windows, operator: Callable[..., tirx.Expr], term: Callable[..., tirx.Expr]
) -> te.Tensor:
    """Return a reduction over windows along the last axes of x.

    `term` gets the indices of an output and of an element of its window, and whether the window has the element.
    """
    rank = len(windows)
    taps = [te.reduce_axis((0, window.max_taps), "tap") for window in windows]

    def element(*at: tirx.Var) -> tirx.Expr:
        triples = list(zip(windows, at[-rank:], taps, strict=True))
        index = [window.index(output, tap) for window, output, tap in triples]
        tests = [window.contains(output, each) for (window, output, _), each in zip(triples, index, strict=True)]
        return operator(term(at, [*at[:-rank], *index], tirx.all(*tests)), axis=taps)

    return te.compute([*list(x.shape)[:-rank], *(window.outputs for window in windows)], element, "reduced")


def _is_nan(value: tirx.Expr) -> tirx.Expr:
    return tirx.isnan(value) if "float" in str(value.ty.dtype) else tirx.const(False, "bool")
