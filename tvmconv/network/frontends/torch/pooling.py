"""Converters of torch's pooling; each takes the shape of the result and the number of spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from tvm import relax

from ...sizes.facts import Size
from ..builder import ImportBuilder
from ..shared import pooling
from .shapes import size
from .types import arguments_of

Numbers = int | Sequence[int]
"""A number for all spatial axes, or a number for each; an empty stride is the kernel's size."""


def average_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, shape: Sequence[Size], spatial: int
) -> relax.Expr:
    """Return the means of windows."""
    kernel, stride, padding, ceiling, padded, divisor = arguments_of(
        node, kernel_size=None, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    )
    windows = _sliding(x, spatial, shape, ceiling, kernel, stride or kernel, 1, padding)
    return pooling.average_pool(builder, x, windows, padded, divisor)


def max_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, shape: Sequence[Size], spatial: int
) -> relax.Expr:
    """Return the maxima of windows and their indices within the spatial axes."""
    kernel, stride, padding, dilation, ceiling = arguments_of(
        node, kernel_size=None, stride=(), padding=0, dilation=1, ceil_mode=False
    )
    windows = _sliding(x, spatial, shape, ceiling, kernel, stride or kernel, dilation, padding)
    return _with_indices(builder, x, windows)


def adaptive_average_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, shape: Sequence[Size], spatial: int
) -> relax.Expr:
    """Return the means of the windows that the result's shape counts."""
    return pooling.average_pool(builder, x, _adaptive(x, spatial, shape))


def adaptive_max_pool(
    builder: ImportBuilder, x: relax.Expr, node: torch.fx.Node, shape: Sequence[Size], spatial: int
) -> relax.Expr:
    """Return the maxima of the windows that the result's shape counts, and their indices within the spatial axes."""
    return _with_indices(builder, x, _adaptive(x, spatial, shape))


OPERATORS: dict[str, Callable[..., relax.Expr]] = {
    f"{name.format(rank)}.default": partial(converter, spatial=rank)
    for name, converter in (
        ("_adaptive_avg_pool{}d", adaptive_average_pool),
        ("adaptive_avg_pool{}d", adaptive_average_pool),
        ("adaptive_max_pool{}d", adaptive_max_pool),
        ("avg_pool{}d", average_pool),
        ("max_pool{}d_with_indices", max_pool),
    )
    for rank in (1, 2, 3)
}
"""The converters by torch's operators."""


def _with_indices(builder: ImportBuilder, x: relax.Expr, windows: pooling.Windows) -> relax.Expr:
    largest = builder.emit(pooling.max_pool(builder, x, windows))
    return relax.Tuple([largest, pooling.indices_of_maxima(builder, x, largest, windows)])


def _sliding(
    x: relax.Expr, spatial: int, shape: Sequence[Size], ceiling: bool, *numbers: Numbers
) -> list[pooling.Sliding]:
    """Return windows along each spatial axis; the numbers are kernel, stride, dilation and padding."""
    columns = [[each] * spatial if isinstance(each, int) else [*each] * (spatial // len(each)) for each in numbers]
    return [
        pooling.Sliding(size(x, axis), shape[axis], kernel, stride, dilation, padding, padding, rounds_up=ceiling)
        for axis, kernel, stride, dilation, padding in zip(range(-spatial, 0), *columns, strict=True)
    ]


def _adaptive(x: relax.Expr, spatial: int, shape: Sequence[Size]) -> list[pooling.Adaptive]:
    return [pooling.Adaptive(size(x, axis), shape[axis]) for axis in range(-spatial, 0)]
