"""Gates of a network: two small layers of images of one pixel, such as means of planes, in one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from tvmconv.compute import with_sizes
from tvmconv.dispatch import algorithms_for, least_cycles
from tvmconv.problem import FusedProblem
from tvmconv.problem.dtypes import FLOATS
from tvmconv.problem.gate import Gate
from tvmconv.problem.precision import DEFAULT
from tvmconv.targets import backend_of

from ...graph.constants import same_sizes
from ...graph.graph import Block, blocks_of, calls
from ...sites import Site
from ..context import GateSites


def gates_of(
    mod: tvm.IRModule, sites: Sequence[Site], target: tvm.target.Target, precision: str = DEFAULT
) -> list[GateSites]:
    """Return the pairs of layers that one kernel is estimated to compute in less time than two.

    Those are convolutions or linear layers on images of one pixel, with constant weights; nothing but the second reads
    what the first computes.
    """
    if not backend_of(target).on_gpu:
        return []
    small = {site.output: site for site in sites if _is_small(site)}
    found, taken = [], set[relax.Var]()
    for block in blocks_of(mod):
        for output, first in small.items():
            second = next((site for site in small.values() if _feeds(output, site, block)), None)
            if second is None or {output, second.output} & taken or not _fits(first, second):
                continue
            if (reason := _reason(first, second, target, precision)) is not None:
                found.append(GateSites(first, second, reason))
                taken |= {output, second.output}
    return found


def gate_problem(pair: GateSites) -> FusedProblem:
    """Return the problem of one kernel for both layers."""
    return _problem(pair.first, pair.second)


def gate_call(pair: GateSites, function: relax.GlobalVar) -> relax.Expr:
    """Return the expression that computes the second layer's output from the first one's input by a function."""
    first, second = pair.first, pair.second
    gate = with_sizes(Gate(first.described, second.described), first.sizes)
    (shape, _), *_, output = gate.operands.values()
    x = first.operands[0]
    x = x if same_sizes(x.ty, shape) else relax.op.reshape(x, shape)
    constants = [each for site in (first, second) for each in _constants(site, site is second)]
    call = relax.call_tir(function, [x, *constants], relax.TensorType(*output))
    wanted = second.output.ty
    return call if same_sizes(wanted, output[0]) else relax.op.reshape(call, wanted.shape)


def _problem(first: Site, second: Site) -> FusedProblem:
    """Return the problem of one kernel for two layers."""
    return FusedProblem(Gate(first.described, second.described), open_sizes=first.convolution.open_sizes)


def _reason(first: Site, second: Site, target: tvm.target.Target, precision: str) -> str | None:
    """Return the reason why one kernel computes two layers; None where no template does, or two should take less."""
    if not algorithms_for(fused := _problem(first, second), target):
        return None
    problems = [site.problem(precision) for site in (first, second)]
    together, apart = least_cycles(fused, target), None
    if all(algorithms_for(problem, target) for problem in problems):
        apart = sum(least_cycles(problem, target) for problem in problems)
    if apart is not None and together >= apart:
        return None
    names = f"one kernel for {first.convolution.name} and {second.convolution.name}"
    two = "no template takes both" if apart is None else f"two take {apart:.0f}"
    return f"{names}: estimated at {together:.0f} clocks, {two}"


def _is_small(site: Site) -> bool:
    """Return whether a site is one of a layer on images of one pixel that a gate may have."""
    if (workload := site.workload) is None or workload.dtype not in FLOATS or site.weight is None:
        return False
    epilogue = workload.epilogue
    return (
        (workload.height, workload.width, *workload.kernel, workload.groups) == (1, 1, 1, 1, 1)
        and not any(workload.padding)
        and set(site.convolution.open_sizes) <= {"batch"}
        and not (epilogue.scale or epilogue.residual)
    )


def _fits(first: Site, second: Site) -> bool:
    """Return whether the sizes of a layer are those of one that reads what the first one computes."""
    one, other = first.described, second.described
    same = (one.batch, one.out_channels) == (other.batch, other.in_channels)
    return same and first.sizes.keys() == second.sizes.keys()


def _feeds(output: relax.Var, site: Site, block: Block) -> bool:
    """Return whether a site, and nothing else, reads what another computes, perhaps cast or in another shape."""
    readers = block.readers(output) if output in block.values and block.is_inner(output) else []
    while len(readers) == 1 and calls(block.values[readers[0]], "astype", "reshape", "squeeze", "flatten"):
        readers = block.readers(readers[0]) if block.is_inner(readers[0]) else []
    return len(readers) == 1 and site.sums is not None and readers[0].same_as(site.sums)


def _constants(site: Site, turned: bool) -> list[relax.Expr]:
    """Return the weight (K, C) of a layer, or `turned` (C, K), and its shift."""
    weight = site.weight
    assert weight is not None
    # A layer of one channel is a depthwise one, whose weight begins with its channel.
    matrix = weight.reshape(site.described.out_channels, -1)
    return [relax.const(np.ascontiguousarray(matrix.T if turned else matrix)), *map(relax.const, site.vectors.values())]
