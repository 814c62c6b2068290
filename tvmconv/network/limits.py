"""The largest sizes that kernels can index, of those that are known only when a network runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from ..errors import UnsupportedModelError
from ..lowering import MOST_TILES
from ..substitution import evaluated
from ..workload import MAX_ELEMENTS
from .agreement import agreements
from .convolutions import size_text
from .sites import Site
from .sizes import OpenSize

Shape = Sequence[int | tirx.Expr]


def with_limits(sites: Sequence[Site], sizes: Sequence[OpenSize]) -> tuple[OpenSize, ...]:
    """Return the open sizes, none larger than lets each tensor of the convolutions have `MAX_ELEMENTS`.

    Tensors with several open sizes limit none of them: see `conditions`.
    """
    limited = {size.name: size for size in sizes}
    for site in sites:
        for tensor, shape in site.shaped.tensors.items():
            variables = _variables(shape)
            if len(variables) != 1 or (size := limited.get((var := variables.pop()).name)) is None:
                continue
            most = min(size.most or MAX_ELEMENTS, MAX_ELEMENTS)
            if most == size.most and _elements(shape, var, most) <= MAX_ELEMENTS:
                continue
            reason = f"with more, the {tensor} of {site.convolution.description} has over {MAX_ELEMENTS} elements"
            limit = OpenSize(size.name, size.least, _largest(shape, var, most), reason)
            limited[size.name] = size.within(limit)
    return tuple(limited.values())


def conditions(mod: tvm.IRModule, sites: Sequence[Site], sizes: Sequence[OpenSize]) -> tuple[str, ...]:
    """Return what has to be true of the open sizes of a network's inputs, as expressions of Python with their names.

    Sizes that agree when the model runs are equal, each convolution has outputs, no more than kernels can count, and
    each of its tensors with several open sizes has at most `MAX_ELEMENTS`. Sizes that the model's numbers decide, such
    as how many are not zero, are in none; raises `UnsupportedModelError` where they would have to agree.
    """
    names = {size.name for size in sizes}
    found = []
    for pair in agreements(mod):
        if not _known(pair, names):
            texts = " and ".join(map(_text, pair))
            raise UnsupportedModelError(f"the sizes {texts} have to be equal, and no input has them")
        found.append(" == ".join(map(_text, pair)))
    for site in sites:
        workload = site.shaped
        open_outputs = [size for size in workload.output_size if not isinstance(size, int) and _known([size], names)]
        found += [f"1 <= {_text(size)} <= {MOST_TILES}" for size in open_outputs]
        for shape in workload.tensors.values():
            if sum(not isinstance(size, int) for size in shape) > 1 and _known(shape, names):
                found.append(f"{' * '.join(f'({_text(size)})' for size in shape)} <= {MAX_ELEMENTS}")
    return tuple(dict.fromkeys(found))


def _variables(shape: Shape) -> set[tirx.Var]:
    return {var for size in shape if not isinstance(size, int) for var in tirx.analysis.undefined_vars(size)}


def _known(shape: Shape, names: Collection[str]) -> bool:
    """Return whether sizes of these names decide on a shape."""
    return all(var.name in names for var in _variables(shape))


def _text(size: int | tirx.Expr) -> str:
    """Return a size as an expression of Python."""
    return str(size) if isinstance(size, int) else size_text(Analyzer().simplify(size))


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
    return prod(size if isinstance(size, int) else evaluated(size, {var: value}) for size in shape)
