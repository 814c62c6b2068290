"""The largest sizes that kernels can index, of those that are known only when a network runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from ..compute import with_sizes
from ..substitution import substitute
from ..workload import MAX_ELEMENTS
from .sites import find_convolutions
from .sizes import Limit, OpenSize

Shape = Sequence[int | tirx.Expr]


def with_limits(mod: tvm.IRModule, sizes: Sequence[OpenSize]) -> tuple[OpenSize, ...]:
    """Return the open sizes, none larger than lets each tensor of the module's convolutions have `MAX_ELEMENTS`.

    Tensors with several open sizes limit none of them: see `joint_limits`.
    """
    limited = {size.name: size for size in sizes}
    for site in find_convolutions(mod):
        if site.workload is None:
            continue
        for tensor, shape in with_sizes(site.workload, site.sizes).tensors.items():
            variables = {
                var for size in shape if not isinstance(size, int) for var in tirx.analysis.undefined_vars(size)
            }
            if len(variables) != 1 or (size := limited.get((var := variables.pop()).name)) is None:
                continue
            most = min(size.most or MAX_ELEMENTS, MAX_ELEMENTS)
            if most == size.most and _elements(shape, var, most) <= MAX_ELEMENTS:
                continue
            reason = f"with more, the {tensor} of {site.convolution.description} has over {MAX_ELEMENTS} elements"
            limit = OpenSize(size.name, size.least, _largest(shape, var, most), reason)
            limited[size.name] = size.within(limit)
    return tuple(limited.values())


def joint_limits(mod: tvm.IRModule) -> tuple[Limit, ...]:
    """Return the limits of tensors with several open sizes, without those that others include."""
    limits: list[Limit] = []
    for site in find_convolutions(mod):
        if site.workload is None:
            continue
        for tensor, shape in with_sizes(site.workload, site.sizes).tensors.items():
            axes = [(size, list(tirx.analysis.undefined_vars(size))) for size in shape if not isinstance(size, int)]
            if len({var.name for _, variables in axes for var in variables}) < 2:
                continue
            if any(len(variables) != 1 for _, variables in axes):
                continue
            scale, offsets = float(prod(size for size in shape if isinstance(size, int))), dict[str, float]()
            for size, (var,) in axes:
                slope, offset = _line_above(size, var)
                scale, offsets[var.name] = scale * slope, offset
            limit = Limit(f"the {tensor} of {site.convolution.description}", scale, offsets)
            if len(offsets) == len(axes) and not any(other.includes(limit) for other in limits):
                limits = [*(other for other in limits if not limit.includes(other)), limit]
    return tuple(limits)


FAR = 400 * 2520
"""A size that is large beside every padding and kernel, and a multiple of strides up to 10."""

PROBES = 64
"""The number of sizes from which on the rounding of strides repeats."""


def _line_above(size: tirx.Expr, var: tirx.Var) -> tuple[float, float]:
    """Return slope and offset of a line that an axis is below: it has at most `slope * (value + offset)` elements."""
    slope = (_elements([size], var, 2 * FAR) - _elements([size], var, FAR)) / FAR
    probes = [*range(1, PROBES), *range(FAR, FAR + PROBES)]
    return slope, max(_elements([size], var, value) / slope - value for value in probes)


def _largest(shape: Shape, var: tirx.Var, most: int) -> int:
    """Return the largest value of a variable, up to `most`, with which a shape has no more than `MAX_ELEMENTS`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _elements(shape, var, middle) <= MAX_ELEMENTS:
            low = middle
        else:
            high = middle - 1
    return low


def _elements(shape: Shape, var: tirx.Var, value: int) -> int:
    """Return the number of elements of a shape for a value of its variable."""
    analyzer = Analyzer()
    return prod(
        size if isinstance(size, int) else int(analyzer.simplify(substitute(size, {var: value}))) for size in shape
    )
