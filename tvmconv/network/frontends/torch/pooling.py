"""Pooling of torch that Relax's importer does not know: divisors, rounding up, places of maxima, adaptive windows.

Each function takes the shape of the result, in which sizes may be open; formulas then take the place of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import torch
from tvm import relax

from ...graph.constants import sizes_of
from ...sizes.facts import Size
from ..builder import ImportBuilder
from .open_pooling import Adaptive, Sliding, Windows, maxima, means, places_of_maxima
from .types import given

Array = np.ndarray[Any, Any]

AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
LARGEST = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


@dataclass(frozen=True)
class Axis:
    """Windows along one axis: `size` is that of the input, `target` the number of windows."""

    size: int
    target: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def missing(self) -> int:
        """The number of elements behind the last one that windows reach to."""
        reach = (self.target - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return max(0, reach - self.size - self.padding)

    def counts(self, padded: bool) -> Array:
        """Return the number of elements by which torch divides each window; padding may be among them."""
        begin = np.arange(self.target) * self.stride - self.padding
        end = np.minimum(begin + self.kernel, self.size + self.padding)
        return np.asarray(end - begin if padded else np.minimum(end, self.size) - np.maximum(begin, 0))

    def places(self) -> Array:
        """Return the places of each window's elements, (target, kernel); the first is -padding."""
        begin = np.arange(self.target) * self.stride - self.padding
        return np.asarray(begin[:, None] + np.arange(self.kernel) * self.dilation)


def average_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, spatial: int, shape: Sequence[Size]
) -> relax.Expr | None:
    """Return means of windows as torch's `avg_pool` takes them; None where Relax's are the same.

    They are the means of windows inside a padded x, times a factor that corrects the number of elements.
    """
    kernel, stride, padding, ceiling, padded, divisor = given(
        node, kernel_size=None, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    )
    if divisor is None and not ceiling and not (spatial == 3 and padding):
        return None
    axes = _axes(x, shape, spatial, kernel, stride, padding)
    reaches_out = axes and any(axis.missing > axis.padding or (spatial == 3 and axis.padding) for axis in axes)
    if axes and divisor is None and not reaches_out:
        return None
    if not node.meta["val"].is_floating_point():
        raise ValueError("such means of integers are not supported")
    if axes is None:
        columns = _columns(spatial, kernel, stride, padding)
        sliding = [Sliding(size, step, before, counts_padding=padded) for size, step, before in columns]
        return means(builder, x, shape[-spatial:], sliding, divisor)

    def pooled(x: relax.Expr) -> relax.Expr:
        inside = _padded(builder, x, axes, 0.0)
        kernel = [axis.kernel for axis in axes]
        averages = AVERAGE[spatial](inside, kernel, [axis.stride for axis in axes], layout=LAYOUTS[spatial])
        counts = reduce(np.multiply.outer, [axis.counts(padded) for axis in axes])
        factors = prod(kernel) / (np.full_like(counts, divisor) if divisor else counts)
        return relax.op.multiply(builder.emit(averages), relax.const(factors.astype(str(x.ty.dtype))))

    return _in_batch(builder, x, spatial, pooled)


def max_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, spatial: int, shape: Sequence[Size]
) -> relax.Expr | None:
    """Return the maxima of windows and their places within a plane; None where Relax's maxima are enough."""
    kernel, stride, padding, dilation, ceiling = given(
        node, kernel_size=None, stride=(), padding=0, dilation=1, ceil_mode=False
    )
    has_stride = len(node.args) < 3 or node.args[2]  # Relax does not know one that is given as empty
    if has_stride and not ceiling and all(user.args[1] == 0 for user in node.users):
        return None
    axes = _axes(x, shape, spatial, kernel, stride, padding, dilation)
    if axes is None:
        columns = _columns(spatial, kernel, stride, padding, dilation)
        return _maxima_and_places(
            builder, x, shape, [Sliding(size, step, before, apart) for size, step, before, apart in columns]
        )
    before = [axis.padding for axis in axes]
    reaches_out = any(axis.missing > axis.padding for axis in axes)
    after = [axis.missing if reaches_out else axis.padding for axis in axes]
    kernels, strides, dilations = ([getattr(axis, name) for axis in axes] for name in ("kernel", "stride", "dilation"))

    def pooled(x: relax.Expr) -> relax.Expr:
        return LARGEST[spatial](x, kernels, strides, [*before, *after], dilations, layout=LAYOUTS[spatial])

    def places(x: relax.Expr) -> relax.Expr:
        inside = _padded(builder, x, axes, _lowest(str(x.ty.dtype)))
        sizes = [axis.padding + axis.size + axis.missing for axis in axes]
        found = [axis.places() for axis in axes]
        shifted = [place + axis.padding for place, axis in zip(found, axes, strict=True)]
        return _place_of_largest(builder, inside, _joined(shifted, sizes), _joined(found, [axis.size for axis in axes]))

    targets = [axis.target for axis in axes]
    return relax.Tuple(
        [
            builder.emit(_in_batch(builder, x, spatial, pooled)),
            builder.emit(_in_batch(builder, x, spatial, lambda x: _reshaped(builder, places(x), targets))),
        ]
    )


def adaptive_average_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, spatial: int, shape: Sequence[Size]
) -> relax.Expr | None:
    """Return the means of as many windows as are wanted; None where Relax has them."""
    outputs, sizes = shape[-spatial:], (sizes_of(x.ty) or ())[-spatial:]
    if all(size == 1 for size in outputs) or all(isinstance(size, int) for size in [*outputs, *sizes]):
        return None
    return means(builder, x, outputs, [Adaptive()] * spatial)


def adaptive_max_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, spatial: int, shape: Sequence[Size]
) -> relax.Expr:
    """Return the maxima of as many windows as are wanted, and their places within a plane."""
    known, wanted = (sizes_of(x.ty) or ())[-spatial:], shape[-spatial:]
    sizes, targets = ([size for size in each if isinstance(size, int)] for each in (known, wanted))
    if len(sizes) + len(targets) < 2 * spatial:
        return _maxima_and_places(builder, x, shape, [Adaptive()] * spatial)
    found = []
    for size, target in zip(sizes, targets, strict=True):
        begin, end = np.arange(target) * size // target, -(-(np.arange(target) + 1) * size // target)
        taps = begin[:, None] + np.arange(max(end - begin, default=1))
        found.append(np.minimum(taps, end[:, None] - 1))
    table = _joined(found, sizes)

    def values(x: relax.Expr) -> relax.Expr:
        return _reshaped(builder, relax.op.max(_windows(builder, x, table), axis=-1), targets)

    def places(x: relax.Expr) -> relax.Expr:
        return _reshaped(builder, _place_of_largest(builder, x, table, table), targets)

    return relax.Tuple([builder.emit(_in_batch(builder, x, spatial, each)) for each in (values, places)])


def _maxima_and_places(
    builder: ImportBuilder, x: relax.Expr, shape: Sequence[Size], windows: Sequence[Windows]
) -> relax.Expr:
    largest = maxima(builder, x, shape[-len(windows) :], windows)
    return relax.Tuple([largest, places_of_maxima(builder, x, largest, windows)])


def _columns(spatial: int, *attributes: Any) -> list[tuple[int, ...]]:
    """Return the attributes of windows along each axis; an attribute is one number or one for each axis.

    The first two are kernel and stride; without a stride, the stride is the kernel.
    """
    kernel, stride, *rest = attributes
    columns = []
    for attribute in (kernel, stride or kernel, *rest):
        values = [attribute] if isinstance(attribute, int) else list(attribute)
        columns.append(values * (spatial // len(values)))
    return list(zip(*columns, strict=True))


def _axes(x: relax.Expr, shape: Sequence[Size], spatial: int, *attributes: Any) -> list[Axis] | None:
    """Return the windows along each spatial axis of x, and of a result's shape; None where a size is open."""
    sizes = (sizes_of(x.ty) or ())[-spatial:]
    known = [
        (size, target)
        for size, target in zip(sizes, shape[-spatial:], strict=True)
        if isinstance(size, int) and isinstance(target, int)
    ]
    if len(known) < spatial:
        return None
    return [Axis(*pair, *numbers) for pair, numbers in zip(known, _columns(spatial, *attributes), strict=True)]


def _in_batch(
    builder: relax.BlockBuilder, x: relax.Expr, spatial: int, function: Callable[[relax.Expr], relax.Expr]
) -> relax.Expr:
    """Apply a function of images (batch, channels, *size) to x, which may be a single image."""
    if x.ty.ndim == spatial + 2:
        return function(x)
    image = builder.emit(relax.op.expand_dims(x, 0))
    return relax.op.squeeze(builder.emit(function(image)), [0])


def _padded(builder: relax.BlockBuilder, x: relax.Expr, axes: Sequence[Axis], value: float) -> relax.Expr:
    widths = [width for axis in axes for width in (axis.padding, axis.missing)]
    return builder.emit(relax.op.nn.pad(x, [0, 0, 0, 0, *widths], "constant", value)) if any(widths) else x


def _lowest(dtype: str) -> float:
    return float("-inf") if "float" in dtype else int(np.iinfo(dtype).min)


def _joined(places: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Return places within planes of these sizes, (windows, elements of one), from places along the axes."""
    total = np.zeros((1, 1), "int64")
    for place, size in zip(places, sizes, strict=True):
        total = total[:, None, :, None] * size + place[None, :, None, :]
        total = total.reshape(total.shape[0] * total.shape[1], -1)
    return total


def _reshaped(builder: relax.BlockBuilder, x: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """Return x (batch, channels, windows) with its windows as planes of a shape."""
    x = builder.emit(x)
    return relax.op.reshape(x, (*list(x.ty.shape)[:2], *shape))


def _windows(builder: relax.BlockBuilder, x: relax.Expr, table: Array) -> relax.Expr:
    """Return the elements of windows of x (batch, channels, *size): (batch, channels, windows, elements of one)."""
    planes = builder.emit(relax.op.reshape(x, (*list(x.ty.shape)[:2], -1)))
    return builder.emit(relax.op.take(planes, relax.const(table, "int64"), axis=2))


def _place_of_largest(builder: relax.BlockBuilder, x: relax.Expr, table: Array, places: Array) -> relax.Expr:
    """Return for each window the place, out of `places`, of its largest element."""
    largest = builder.emit(relax.op.argmax(_windows(builder, x, table), axis=-1))
    rows = relax.const(np.arange(len(places)) * places.shape[1], "int64")
    return relax.op.take(relax.const(places.reshape(-1), "int64"), builder.emit(relax.op.add(largest, rows)), axis=0)
