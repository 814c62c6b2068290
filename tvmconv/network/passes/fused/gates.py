"""Gates of a network: two small layers of images of one pixel, such as means of planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import tvm
from tvm import relax

from tvmconv.problem import FusedProblem
from tvmconv.problem.dtypes import FLOATS
from tvmconv.problem.fused import Gate

from ...graph.constants import same_sizes
from ...graph.graph import Block, calls
from ...sites import Site
from ..context import FusedLayers


def gates_of(block: Block, sites: Sequence[Site], target: tvm.target.Target, precision: str) -> Iterator[FusedLayers]:
    """Yield the pairs of layers on images of one pixel, whose weights are constants.

    Nothing but the second layer reads what the first one computes.

    Before: `h = act(conv(x, w) + b)`, `y = act(conv(h, v) + c)`.
    After: `y = R.call_tir(tvmconv_gate_0f3a91c2d47b, (x, w, b, v, c))`.
    """
    small = [site for site in sites if _is_small(site)]
    for first in small:
        second = next((site for site in small if _is_only_reader(first.output, site, block)), None)
        if second is not None and _sizes_fit(first, second):
            yield FusedLayers(
                FusedProblem(Gate(first.described, second.described), open_sizes=first.convolution.open_sizes),
                partial(_operands, first, second),
                second.output,
                {site.output: site.convolution for site in (first, second)},
                f"{first.convolution.name} and {second.convolution.name}",
                tuple(site.problem(precision) for site in (first, second)),
                first.sizes,
            )


def _is_small(site: Site) -> bool:
    """Return whether a site is a layer on images of one pixel that a gate may have."""
    if (workload := site.workload) is None or workload.dtype not in FLOATS:
        return False
    epilogue = workload.epilogue
    return (
        (workload.height, workload.width, *workload.kernel, workload.groups) == (1, 1, 1, 1, 1)
        and not any(workload.padding)
        and set(site.convolution.open_sizes) <= {"batch"}
        and not (epilogue.scale or epilogue.residual)
        and site.weight is not None
    )


def _sizes_fit(first: Site, second: Site) -> bool:
    """Return whether a layer reads images of the sizes and the type that another one computes."""
    one, other = first.described, second.described
    same = (one.batch, one.out_channels, one.dtype) == (other.batch, other.in_channels, other.dtype)
    return same and first.sizes.keys() == second.sizes.keys()


def _is_only_reader(output: relax.Var, site: Site, block: Block) -> bool:
    """Return whether a site, and nothing else, reads what another computes, perhaps cast or in another shape."""
    readers = block.readers(output) if output in block.values and block.is_inner(output) else []
    while len(readers) == 1 and calls(block.values[readers[0]], "astype", "reshape", "squeeze", "flatten"):
        readers = block.readers(readers[0]) if block.is_inner(readers[0]) else []
    return len(readers) == 1 and site.sums is not None and readers[0].same_as(site.sums)


def _operands(first: Site, second: Site) -> list[relax.Expr]:
    """Return the image, and for each layer the weight and, if it has one, the shift."""
    x, shape = first.operands[0], first.shaped.x_shape
    x = x if same_sizes(x.ty, shape) else relax.op.reshape(x, shape)
    return [x, *(each for site in (first, second) for each in _constants(site, site is second))]


def _constants(site: Site, transposed: bool) -> list[relax.Expr]:
    """Return the weight (K, C) of a layer, or with `transposed` (C, K), and its shift."""
    weight = site.weight
    assert weight is not None
    # A layer of one channel is a depthwise one, whose weight begins with its channel.
    matrix = weight.reshape(site.described.out_channels, -1)
    matrix = np.ascontiguousarray(matrix.T if transposed else matrix)
    return [relax.const(matrix), *map(relax.const, site.vectors.values())]
