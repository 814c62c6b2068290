"""Convolutions of integers that no kernel for integers takes, in float32 where that is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import tvm
from tvm import relax

from tvmconv.problem.dtypes import QUANTIZED

from ..graph.constants import Array, constant_value
from ..graph.graph import Block, blocks_of, call_of, rebind
from ..sites import Site

LARGEST = 255
"""The largest distance of a byte from its zero point."""

EXACT = 2**24
"""The integers up to which each is a float32 number."""


def with_exact_sums(
    mod: tvm.IRModule, sites: list[Site], find: Callable[[tvm.IRModule], list[Site]]
) -> tuple[tvm.IRModule, list[Site]]:
    """Return the module with convolutions of bytes in float32 that no kernel for integers takes, as of open planes.

    `sites` are those of the module, and `find` returns those of another. Each sum of some of the products is an integer
    of at most 24 bits, so none is rounded, whatever the order.

    Before: `y = R.nn.conv2d(x, w)`, in int32.
    After: `y = R.astype(R.nn.conv2d(R.astype(x, "float32"), w_in_float32), "int32")`.
    """
    left = {site.sums for site in sites if site.workload is None and site.convolution.in_float is not None}
    values = {}
    for block in blocks_of(mod):
        for var, call in block.values.items():
            weight = constant_value(call.args[1]) if var in left and _is_of_bytes(call.args[0], block) else None
            if weight is None or LARGEST * int(_sums_of_sizes(weight).max(initial=0)) > EXACT:
                continue
            x, w = relax.op.astype(call.args[0], "float32"), relax.const(weight.astype("float32"))
            values[var] = relax.op.astype(relax.Call(call.op, [x, w], call.attrs), "int32")
    if not values:
        return mod, sites
    mod = rebind(mod, values)
    pairs = zip(sites, find(mod), strict=True)  # each convolution is still one
    return mod, [_of_integers(new, old) if old.sums in values else new for old, new in pairs]


def _of_integers(site: Site, before: Site) -> Site:
    """Return a site in float32, with the reason why it is not in integers, as it was `before`."""
    convolution = replace(site.convolution, in_float=before.convolution.in_float)
    return replace(site, convolution=convolution, of_integers=True)


def _is_of_bytes(x: relax.Expr, block: Block) -> bool:
    """Return whether a tensor in int32 has bytes as elements, or bytes less others of their type."""
    value = block.values.get(x)
    difference = call_of(value, "subtract")
    terms = [value] if difference is None else [block.values.get(each) for each in difference.args]
    casts = [call_of(term, "astype") for term in terms]
    dtypes = {None if cast is None else str(cast.args[0].ty.dtype) for cast in casts}
    return str(x.ty.dtype) == "int32" and len(dtypes) == 1 and dtypes <= {*QUANTIZED}


def _sums_of_sizes(weight: Array) -> Array:
    """Return the sum of the sizes of each filter's elements."""
    return np.asarray(np.abs(weight.astype("int64")).reshape(len(weight), -1).sum(axis=1))
