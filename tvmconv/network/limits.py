"""The largest sizes that kernels can index, of those that are known only when a network runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from ..compute import with_sizes
from ..lowering import MOST_TILES
from ..substitution import substitute
from ..workload import MAX_ELEMENTS
from .agreement import agreements
from .convolutions import size_text
from .sites import find_convolutions
from .sizes import OpenSize, as_name

Shape = Sequence[int | tirx.Expr]


def with_limits(mod: tvm.IRModule, sizes: Sequence[OpenSize]) -> tuple[OpenSize, ...]:
    """Return the open sizes, none larger than lets each tensor of the module's convolutions have `MAX_ELEMENTS`.

    Tensors with several open sizes limit none of them: see `conditions`.
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


def conditions(mod: tvm.IRModule) -> tuple[str, ...]:
    """Return what has to be true of the open sizes of a network's inputs, as expressions of Python with their names.

    Sizes that agree when the model runs are equal, each convolution has outputs, no more than kernels can count, and
    each of its tensors with several open sizes has at most `MAX_ELEMENTS`.
    """
    found = [f"{_text(size)} == {_text(other)}" for size, other in agreements(mod)]
    for site in find_convolutions(mod):
        if site.workload is None:
            continue
        workload = with_sizes(site.workload, site.sizes)
        found += [f"1 <= {_text(size)} <= {MOST_TILES}" for size in workload.output_size if not isinstance(size, int)]
        for shape in workload.tensors.values():
            if sum(not isinstance(size, int) for size in shape) > 1:
                found.append(f"{' * '.join(f'({_text(size)})' for size in shape)} <= {MAX_ELEMENTS}")
    return tuple(dict.fromkeys(found))


def _text(size: int | tirx.Expr) -> str:
    """Return a size as an expression of Python."""
    if isinstance(size, int):
        return str(size)
    names = {var: tirx.Var(as_name(var.name), var.ty.dtype) for var in tirx.analysis.undefined_vars(size)}
    return size_text(Analyzer().simplify(substitute(size, names)))


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
