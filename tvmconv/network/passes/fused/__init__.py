"""Several layers in one kernel on a GPU: the list of the patterns, and the passes that find them and call kernels.

A finder yields what it finds in a block: the problem of one kernel, its operands and the variable that it computes. If
two kernels could take the same layer, the one that saves more clocks by the templates' estimates gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import tvm
from tvm import relax

from tvmconv.dispatch import algorithms_for, least_cycles
from tvmconv.problem import FusedProblem
from tvmconv.targets import backend_of

from ...graph.graph import Block, blocks_of, rebind
from ...sites import Site
from ..context import Context, FusedLayers
from ..convolutions.functions import FusedKernels
from .attention import attention_of
from .gates import gates_of


class Finder(NamedTuple):
    """A function that finds one pattern."""

    find: Callable[[Block, Sequence[Site], tvm.target.Target, str], Iterable[FusedLayers]]
    """The function of a block, the sites of the layers, the target, and the precision of the kernels."""
    of_layers: bool
    """True for a pattern of convolutions and linear layers, which is found before their layouts are chosen; False for
    one of products of two computed tensors, which the kernel reads where the layers have stored them."""


FINDERS = (Finder(gates_of, of_layers=True), Finder(attention_of, of_layers=False))
"""The finders of all patterns."""


def choose_fused(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Plan one kernel for each group of layers that `fused_layers` finds; the module stays as it is."""
    layers = {layer.site.output: layer for layer in context.plan.layers if layer.sparse is None}
    sites = [layer.site for layer in layers.values()]
    for found in fused_layers(mod, sites, context.target, context.precision):
        for var in found.layers:
            layers[var].fused = found
    return mod


def use_fused(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with a kernel for each group of products that `_fused_products` finds.

    The context gets the products. `use_products` takes the rest.

    Before: `scores = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`, `y = R.matmul(R.nn.softmax(scores), v)`.
    After: `y = R.reshape(R.call_tir(tvmconv_attention_0f3a91c2d47b, (R.reshape(qkv, ...), ...)), ...)`.
    """
    kernels = FusedKernels(builder := relax.BlockBuilder(mod), context.target)
    values: dict[relax.Var, relax.Expr] = {}
    for found in _fused_products(mod, context):
        values[found.output] = kernels.call(found)
        context.products += [kernels.layer(found, each) for each in found.layers.values()]
    return rebind(builder.get(), values)


def fused_problems(mod: tvm.IRModule, context: Context) -> list[FusedProblem]:
    """Return the problems of all kernels of several layers each, of a module whose layers are planned."""
    return [found.problem for found in (*context.plan.fused, *_fused_products(mod, context))]


def fused_layers(
    mod: tvm.IRModule, sites: Sequence[Site], target: tvm.target.Target, precision: str
) -> list[FusedLayers]:
    """Return the groups of convolutions and linear layers that one kernel is estimated to compute in less time."""
    return _chosen(mod, sites, target, precision, of_layers=True)


def _fused_products(mod: tvm.IRModule, context: Context) -> list[FusedLayers]:
    """Return the groups of products of two computed tensors that one kernel computes."""
    return _chosen(mod, (), context.target, context.precision, of_layers=False)


def _chosen(
    mod: tvm.IRModule, sites: Sequence[Site], target: tvm.target.Target, precision: str, of_layers: bool
) -> list[FusedLayers]:
    """Return the groups that kernels take, in order, no layer in two of them.

    Of groups with a layer in common, the one that saves most is chosen or, if the savings have no estimate, the
    fastest.
    """
    if not backend_of(target).on_gpu:
        return []
    finders = [finder for finder in FINDERS if finder.of_layers == of_layers]
    found = (each for block in blocks_of(mod) for one in finders for each in one.find(block, sites, target, precision))
    saving = {each: saved for each in found if (saved := _saved(each, target)) > 0}
    covered, chosen = set[relax.Var](), set[FusedLayers]()
    for each in sorted(saving, key=lambda each: (-saving[each], least_cycles(each.problem, target))):
        if covered.isdisjoint(each.layers):
            covered.update(each.layers)
            chosen.add(each)
    return [replace(each, reason=_reason(each, target)) for each in saving if each in chosen]


def _saved(found: FusedLayers, target: tvm.target.Target) -> float:
    """Return the estimated clocks that one kernel saves: -inf without a template, inf without an estimate of layers."""
    if not algorithms_for(found.problem, target):
        return -inf
    return _separate_clocks(found, target) - least_cycles(found.problem, target)


def _separate_clocks(found: FusedLayers, target: tvm.target.Target) -> float:
    """Return the estimated clocks of the kernels that compute the layers apart; infinity where there is no estimate."""
    if not found.separate_problems or not all(algorithms_for(problem, target) for problem in found.separate_problems):
        return inf
    return sum(least_cycles(problem, target) for problem in found.separate_problems)


def _reason(found: FusedLayers, target: tvm.target.Target) -> str:
    """Return the reason why one kernel computes several layers."""
    together, apart = least_cycles(found.problem, target), _separate_clocks(found, target)
    others = "" if apart == inf else f", apart at {apart:.0f}"
    return f"one kernel for {found.words}: estimated at {together:.0f} clocks{others}"
