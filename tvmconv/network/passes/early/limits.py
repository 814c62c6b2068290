"""Upper bounds for sizes that are known only when a network runs, up to which kernels can index the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
from tvm import tirx

from tvmconv.compute.substitution import evaluated
from tvmconv.lowering import MAX_TILES
from tvmconv.problem.workload import MAX_ELEMENTS

from ...graph.sizes import OpenSize
from ...sites import Site, find_convolutions
from ...sizes.facts import SizeFacts, as_expr, product
from ..context import Context

Shape = Sequence[int | tirx.Expr]


def limit_open_sizes(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Bound the open sizes of the context by what the kernels of convolutions can index; return the module as it is.

    Raises `UnsupportedModelError` for a network whose sizes, within the model's bounds, are all too large.
    """
    if context.open_sizes:
        sites = [site for site in find_convolutions(mod) if site.workload is not None]
        require_what_kernels_index(sites, context.facts)
        context.open_sizes = with_limits(sites, context.open_sizes)
    return mod


def with_limits(sites: Sequence[Site], sizes: Sequence[OpenSize]) -> tuple[OpenSize, ...]:
    """Return the open sizes, bounded so that no tensor of the convolutions has more than `MAX_ELEMENTS`.

    Tensors with several open sizes bound none of them: see `require_what_kernels_index`.
    """
    limited = {size.name: size for size in sizes}
    for site in sites:
        for tensor, shape in site.shaped.tensors.items():
            variables = _variables(shape)
            if len(variables) != 1 or (size := limited.get((var := variables.pop()).name)) is None:
                continue
            largest = min(size.most or MAX_ELEMENTS, MAX_ELEMENTS)
            if largest == size.most and _elements(shape, var, largest) <= MAX_ELEMENTS:
                continue
            reason = f"with more, the {tensor} of {site.convolution.description} has over {MAX_ELEMENTS} elements"
            limit = OpenSize(size.name, size.least, _largest(shape, var, largest), reason)
            limited[size.name] = size.within(limit)
    return tuple(limited.values())


def require_what_kernels_index(sites: Sequence[Site], facts: SizeFacts) -> None:
    """Add conditions to the facts: open sizes of a network's inputs stay within what kernels can index.

    Each convolution has no more outputs along an axis than kernels can count, and each of its tensors with several open
    sizes has at most `MAX_ELEMENTS`. Sizes that the model's numbers decide, such as the number of nonzeros, are in no
    condition.
    """
    for site in sites:
        words = site.convolution.description
        for size in site.shaped.output_size:
            if facts.are_of_inputs(size):
                facts.require(as_expr(size) <= MAX_TILES, words, f"needs at most {MAX_TILES} outputs along each axis")
        for tensor, shape in site.shaped.tensors.items():
            if sum(not isinstance(size, int) for size in shape) > 1 and all(map(facts.are_of_inputs, shape)):
                need = f"needs at most {MAX_ELEMENTS} elements in {tensor}"
                facts.require(as_expr(product(shape)) <= MAX_ELEMENTS, words, need)


def _variables(shape: Shape) -> set[tirx.Var]:
    return {var for size in shape if not isinstance(size, int) for var in tirx.analysis.undefined_vars(size)}


def _largest(shape: Shape, var: tirx.Var, limit: int) -> int:
    """Return the largest value of a variable, up to `limit`, with which a shape has no more than `MAX_ELEMENTS`."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if _elements(shape, var, middle) <= MAX_ELEMENTS:
            low = middle
        else:
            high = middle - 1
    return low


def _elements(shape: Shape, var: tirx.Var, value: int) -> int:
    """Return the number of elements of a shape for a value of its variable."""
    return prod(size if isinstance(size, int) else evaluated(size, {var: value}) for size in shape)
