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
from .sizes import OpenSize

Shape = Sequence[int | tirx.Expr]


def with_limits(mod: tvm.IRModule, sizes: Sequence[OpenSize]) -> tuple[OpenSize, ...]:
    """Return the open sizes, none larger than lets each tensor of the module's convolutions have `MAX_ELEMENTS`.

    Tensors with several open sizes limit none of them.
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
