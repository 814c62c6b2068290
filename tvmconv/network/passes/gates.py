"""Gates of a network: two small layers behind the means of planes, which a GPU computes in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx

from tvmconv.dispatch import algorithms_for, least_cycles
from tvmconv.lowering import as_scheduled
from tvmconv.problem.dtypes import FLOATS
from tvmconv.problem.precision import DEFAULT
from tvmconv.schedules.cuda.gate.kernel import MOST_CHANNELS, MOST_SQUEEZED, Gate, clocks, gate_kernel
from tvmconv.targets import backend_of
from tvmconv.targets.devices import gpu_of

from ..graph.constants import same_sizes
from ..graph.graph import Block, blocks_of, calls
from ..sites import Site

KERNEL_NAME = "tvmconv cuda/gate"
"""The name of the kernel in the descriptions of layers."""


@dataclass(frozen=True)
class GateSites:
    """The sites of a gate's two layers."""

    first: Site
    second: Site
    reason: str
    """The reason why one kernel computes both, in words."""

    @property
    def gate(self) -> Gate:
        """The workloads of both."""
        return Gate(self.first.described, self.second.described)


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


def _reason(first: Site, second: Site, target: tvm.target.Target, precision: str) -> str | None:
    """Return the reason why one kernel computes two layers; None where two kernels should take less time."""
    problems = [site.problem(precision) for site in (first, second)]
    together = clocks(Gate(first.described, second.described), gpu_of(target))
    apart = None
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
    """Return whether a kernel can compute a layer that reads what the first one computes."""
    one, other = first.described, second.described
    same = (one.batch, one.out_channels) == (
        other.batch,
        other.in_channels,
    ) and first.sizes.keys() == second.sizes.keys()
    return same and one.in_channels <= MOST_CHANNELS and one.out_channels <= MOST_SQUEEZED


def _feeds(output: relax.Var, site: Site, block: Block) -> bool:
    """Return whether a site, and nothing else, reads what another computes, perhaps cast or in another shape."""
    readers = block.readers(output) if output in block.values and block.is_inner(output) else []
    while len(readers) == 1 and calls(block.values[readers[0]], "astype", "reshape", "squeeze", "flatten"):
        readers = block.readers(readers[0]) if block.is_inner(readers[0]) else []
    return len(readers) == 1 and site.sums is not None and readers[0].same_as(site.sums)


class GateKernels:
    """The kernels of gates that a module has, one for all equal gates."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._functions: dict[tuple[Gate, bool], relax.GlobalVar] = {}

    def call(self, sites: GateSites) -> relax.Expr:
        """Return the expression that computes the second layer's output from the first one's input."""
        gate, is_open = sites.gate, bool(sites.first.sizes)
        if (gate, is_open) not in self._functions:
            name = f"tvmconv_gate_{len(self._functions)}"
            batch = tirx.Var("batch", "int64") if is_open else gate.first.batch
            self._functions[gate, is_open] = self._builder.add_func(as_scheduled(gate_kernel(gate, batch), name), name)
        batch = sites.first.sizes.get("batch", gate.first.batch)
        *shapes, (output, dtype) = [
            ((batch, *shape[1:]) if len(shape) == 4 else shape, dtype) for shape, dtype in gate.operands
        ]
        x = sites.first.operands[0]
        x = x if same_sizes(x.ty, shapes[0][0]) else relax.op.reshape(x, shapes[0][0])
        constants = [each for site in (sites.first, sites.second) for each in _constants(site, site is sites.second)]
        call = relax.call_tir(self._functions[gate, is_open], [x, *constants], relax.TensorType(output, dtype))
        shape = sites.second.output.ty.shape
        return call if same_sizes(sites.second.output.ty, output) else relax.op.reshape(call, shape)

    def name_of(self, sites: GateSites) -> str:
        """Return the name of the function that `call` calls."""
        return str(self._functions[sites.gate, bool(sites.first.sizes)].name_hint)


def _constants(site: Site, turned: bool) -> list[relax.Expr]:
    """Return the weight (K, C) of a layer, or `turned` (C, K), and its shift."""
    weight = site.weight
    assert weight is not None
    # A layer of one channel is a depthwise one, whose weight begins with its channel.
    matrix = weight.reshape(site.described.out_channels, -1)
    return [relax.const(np.ascontiguousarray(matrix.T if turned else matrix)), *map(relax.const, site.vectors.values())]
