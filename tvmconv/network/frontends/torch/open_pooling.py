"""Pooling of images whose size is known only when the model runs: formulas say which elements a window has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

from tvm import relax, te, tirx

from ...sizes.facts import Size


class Windows(Protocol):
    """Windows along one axis; methods take the sizes of input and output."""

    def taps(self, size: tirx.Expr, outputs: tirx.Expr) -> Any:
        """Return the largest number of elements of a window."""

    def index(self, output: tirx.Expr, tap: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        """Return the index of one element of an output's window."""

    def has(self, output: tirx.Expr, index: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        """Return whether the window has the element: it is in the input, and not behind the window."""

    def count(self, output: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        """Return the number of elements that the sum of a window is divided by for its mean."""


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, at equal distances, in an input with as much padding in front as behind."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1
    counts_padding: bool = False
    """True if padding counts for means; elements behind the padding never do."""

    def taps(self, size: tirx.Expr, outputs: tirx.Expr) -> Any:
        return self.kernel

    def index(self, output: tirx.Expr, tap: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        return output * self.stride - self.padding + tap * self.dilation

    def has(self, output: tirx.Expr, index: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        return tirx.all(index >= 0, index < size)

    def count(self, output: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        begin = output * self.stride - self.padding
        end = tirx.min(begin + self.kernel, size + self.padding)
        return end - begin if self.counts_padding else tirx.min(end, size) - tirx.max(begin, 0)


@dataclass(frozen=True)
class Adaptive:
    """As many windows as are wanted, which cover the input."""

    def taps(self, size: tirx.Expr, outputs: tirx.Expr) -> Any:
        return size // outputs + 2

    def index(self, output: tirx.Expr, tap: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        return output * size // outputs + tap

    def has(self, output: tirx.Expr, index: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        return index < ((output + 1) * size + outputs - 1) // outputs

    def count(self, output: tirx.Expr, size: tirx.Expr, outputs: tirx.Expr) -> tirx.Expr:
        return ((output + 1) * size + outputs - 1) // outputs - output * size // outputs


def means(
    builder: relax.BlockBuilder, x: relax.Expr, outputs: Sequence[Size], windows: Sequence[Windows], divisor: Any = None
) -> relax.Expr:
    """Return the means of windows along the last axes of x; sums divided by `divisor` where there is one."""

    def compute(x: te.Tensor, outputs: Sequence[Any]) -> te.Tensor:
        sums = _reduced(x, outputs, windows, te.sum, lambda at, inside, index: _or(inside, x(*index), 0))

        def mean(*at: tirx.Var) -> tirx.Expr:
            axes = zip(at[-len(windows) :], _last(x, windows), _sizes(outputs), windows, strict=True)
            counts = (window.count(output, size, target) for output, size, target, window in axes)
            number = tirx.const(divisor, "int64") if divisor else reduce(lambda a, b: a * b, counts)
            return sums(*at) / number.astype(x.dtype)

        return te.compute(sums.shape, mean, "mean")

    return builder.emit_te(compute, x, list(outputs), primfunc_name_hint="means")


def maxima(
    builder: relax.BlockBuilder, x: relax.Expr, outputs: Sequence[Size], windows: Sequence[Windows]
) -> relax.Expr:
    """Return the largest elements of windows along the last axes of x."""

    def compute(x: te.Tensor, outputs: Sequence[Any]) -> te.Tensor:
        lowest = te.min_value(x.dtype)
        return _reduced(x, outputs, windows, te.max, lambda at, inside, index: _or(inside, x(*index), lowest))

    return builder.emit_te(compute, x, list(outputs), primfunc_name_hint="maxima")


def places_of_maxima(
    builder: relax.BlockBuilder, x: relax.Expr, largest: relax.Expr, windows: Sequence[Windows]
) -> relax.Expr:
    """Return for each window the index of its first element that is the largest, counted through the last axes of x."""

    def compute(x: te.Tensor, largest: te.Tensor) -> te.Tensor:
        sizes = _last(x, windows)
        nowhere = reduce(lambda a, b: a * b, sizes).astype("int64")

        def place(at: Sequence[tirx.Var], inside: tirx.Expr, index: Sequence[tirx.Expr]) -> tirx.Expr:
            pairs = zip(index[-len(windows) :], sizes, strict=True)
            flat = reduce(lambda flat, pair: flat * pair[1] + pair[0], pairs, tirx.const(0, "int64"))
            # A window that has NaN has it as its largest element.
            found = tirx.any(x(*index) == largest(*at), _is_nan(x(*index)))
            return tirx.if_then_else(inside, tirx.Select(found, flat, nowhere), nowhere)

        return _reduced(x, list(largest.shape)[-len(windows) :], windows, te.min, place)

    return builder.emit_te(compute, x, largest, primfunc_name_hint="places_of_maxima")


def _reduced(
    x: te.Tensor,
    outputs: Sequence[Any],
    windows: Sequence[Windows],
    operator: Callable[..., tirx.Expr],
    term: Callable[..., tirx.Expr],
) -> te.Tensor:
    """Return a reduction over windows along the last axes of x; `term` gets an output's indices, a test and indices."""
    spatial, sizes, targets = len(windows), _last(x, windows), _sizes(outputs)
    axes = list(zip(windows, sizes, targets, strict=True))
    taps = [te.reduce_axis((0, window.taps(size, target)), "tap") for window, size, target in axes]

    def element(*at: tirx.Var) -> tirx.Expr:
        index, tests = list(at[:-spatial]), []
        for output, tap, (window, size, target) in zip(at[-spatial:], taps, axes, strict=True):
            index.append(window.index(output, tap, size, target))
            tests.append(window.has(output, index[-1], size, target))
        return operator(term(at, tirx.all(*tests), index), axis=taps)

    return te.compute([*list(x.shape)[:-spatial], *outputs], element, "reduced")


def _or(test: tirx.Expr, value: tirx.Expr, other: Any) -> tirx.Expr:
    return tirx.if_then_else(test, value, other if isinstance(other, tirx.Expr) else tirx.const(other, value.ty.dtype))


def _is_nan(value: tirx.Expr) -> tirx.Expr:
    return tirx.isnan(value) if "float" in str(value.ty.dtype) else tirx.const(False, "bool")


def _last(x: te.Tensor, windows: Sequence[Windows]) -> list[tirx.Expr]:
    return list(x.shape)[-len(windows) :]


def _sizes(outputs: Sequence[Any]) -> list[tirx.Expr]:
    return [tirx.const(size, "int64") if isinstance(size, int) else size for size in outputs]
