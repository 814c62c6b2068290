"""The convolutions of a network that get kernels, as the first passes of the plan find them.

Convolutions of integers that no kernel for integers takes are in float32 where that is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm
from tvm import relax

from tvmconv import dispatch
from tvmconv.problem.dtypes import NARROW, QUANTIZED
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.targets import multiplies

from ...graph.constants import Array, constant_value
from ...graph.convolutions import GIVE_SIZES
from ...graph.graph import Block, blocks_of, call_of, rebind
from ...sites import Site, find_convolutions
from ..context import Context, LayerPlan, Plan

LARGEST = 255
"""The largest distance of a byte from its zero point."""

EXACT = 2**24
"""The integer up to which float32 holds each integer exactly."""


def find_layers(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Begin the plan with a `LayerPlan` for each convolution and linear layer; the module stays as it is."""
    context.plan = Plan([LayerPlan(site) for site in sites_for(mod, context.target)])
    return mod


def sites_for(mod: tvm.IRModule, target: tvm.target.Target) -> list[Site]:
    """Return the sites that get kernels on a target, and those of convolutions that stay with TVM.

    A convolution whose open sizes no template takes is left to TVM, too.
    """

    def obstacle(site: Site) -> str | None:
        dtype = site.described.dtype
        if dtype in NARROW and not multiplies(target, dtype):
            return f"{target.kind.name} has no instructions for {dtype}"
        try:
            dispatch.templates_for(site.problem(DEFAULT), target)
        except InvalidArgumentError as error:
            return str(error)
        return None

    found = find_convolutions(mod, obstacle)
    return [_left_to_tvm(site, target) if _is_too_open(site, target) else site for site in found]


def _is_too_open(site: Site, target: tvm.target.Target) -> bool:
    """Return whether a site has sizes that are known only when the model runs, and no template takes it with them."""
    return bool(site.convolution.open_sizes) and not dispatch.algorithms_for(site.problem(DEFAULT), target)


def _left_to_tvm(site: Site, target: tvm.target.Target) -> Site:
    """Return the site of a convolution without a kernel for its open sizes."""
    names = " and ".join(site.convolution.open_sizes)
    obstacle = f"the {names} is known only when the model runs, and no kernel for {target.kind.name} takes it so"
    obstacle += f"; {GIVE_SIZES}"
    convolution = replace(site.convolution, workload=None, obstacle=obstacle, open_sizes=(), is_too_open=True)
    return Site(convolution, None, (), site.output)


def with_exact_sums(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with convolutions of bytes that no kernel for integers takes, as of open planes, in float32.

    Each sum of some of the products is an integer of at most 24 bits, so none is rounded, whatever the order.

    Before: `y = R.nn.conv2d(x, w)`, in int32.
    After: `y = R.astype(R.nn.conv2d(R.astype(x, "float32"), w_in_float32), "int32")`.
    """
    sites = [layer.site for layer in context.plan.layers]
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
        return mod
    mod = rebind(mod, values)
    pairs = zip(sites_for(mod, context.target), sites, strict=True)  # each convolution is still one
    context.plan = Plan([LayerPlan(_of_integers(new, old) if old.sums in values else new) for new, old in pairs])
    return mod


def _of_integers(site: Site, before: Site) -> Site:
    """Return a site in float32, with the reason why it is not in integers, as it was `before`."""
    convolution = replace(site.convolution, in_float=before.convolution.in_float)
    return replace(site, convolution=convolution, of_integers=True)


def _is_of_bytes(x: relax.Expr, block: Block) -> bool:
    """Return whether an int32 tensor is cast from bytes, or is a difference of two casts from one type of bytes."""
    value = block.values.get(x)
    difference = call_of(value, "subtract")
    terms = [value] if difference is None else [block.values.get(each) for each in difference.args]
    casts = [call_of(term, "astype") for term in terms]
    dtypes = {None if cast is None else str(cast.args[0].ty.dtype) for cast in casts}
    return str(x.ty.dtype) == "int32" and len(dtypes) == 1 and dtypes <= {*QUANTIZED}


def _sums_of_sizes(weight: Array) -> Array:
    """Return the sum of the absolute values of each filter's elements."""
    return np.asarray(np.abs(weight.astype("int64")).reshape(len(weight), -1).sum(axis=1))
