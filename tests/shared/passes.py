"""Passes of networks on modules of tests, which return beside the module what they leave in the context."""

from __future__ import annotations

import tvm

from tvmconv.network import Layer, passes
from tvmconv.network.passes import half, products, recurrences
from tvmconv.network.passes.context import Context
from tvmconv.network.passes.early import carrying
from tvmconv.problem.precision import DEFAULT

Built = tuple[tvm.IRModule, tuple[Layer, ...]]
"""A module, and the layers that the passes have given kernels."""


def use_kernels(mod: tvm.IRModule, target: tvm.target.Target, sparse: str = "auto", precision: str = DEFAULT) -> Built:
    """Run the passes that find the layers, plan their kernels and call them."""
    context = Context(target, precision, sparse)
    mod = passes.run((*passes.FINDING, *passes.PLANNING, *passes.CALLING), mod, context)
    return mod, context.layers


def use_fused(mod: tvm.IRModule, target: tvm.target.Target, precision: str = DEFAULT) -> Built:
    """Run the pass for attention, as the list does on the devices that it is for."""
    context = Context(target, precision)
    only = [each for each in passes.REMAINING if each.name == "use_fused"]
    return passes.run(only, mod, context), context.layers


def use_products(mod: tvm.IRModule, target: tvm.target.Target, precision: str = DEFAULT) -> Built:
    context = Context(target, precision)
    return products.use_products(mod, context), context.layers


def lower_recurrences(mod: tvm.IRModule, target: tvm.target.Target) -> Built:
    context = Context(target)
    return recurrences.lower_recurrences(mod, context), context.layers


def carry_channels(mod: tvm.IRModule, target: tvm.target.Target, precision: str) -> tvm.IRModule:
    return carrying.carry_channels(mod, Context(target, precision))


def with_precision(mod: tvm.IRModule, target: tvm.target.Target, precision: str) -> tuple[tvm.IRModule, str]:
    """Run the pass for half precision; return the precision of the kernels, too."""
    context = Context(target, precision)
    return half.with_precision(mod, context), context.precision
