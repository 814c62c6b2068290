"""Kernels as functions of a module, for one problem or for several ranges of open sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
import tvm
from tvm import relax

from tvmconv import dispatch, lowering
from tvmconv.compute import with_sizes
from tvmconv.lowering.workspace import Workspace, take_out
from tvmconv.problem import FusedProblem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of, resolve_target

from ...graph.constants import same_sizes
from ...graph.layers import Convolution, Layer
from ..context import FusedLayers
from .packing import Packing, split_packing


class NetworkKernel(NamedTuple):
    """A function of the module that computes convolutions of one problem."""

    function: relax.GlobalVar
    packings: tuple[Packing | None, ...]
    """For each range of batches, the function that packs a constant weight, None for a weight that is read as it is;
    empty for a computed weight."""
    workspace: Workspace


class FusedKernels:
    """The kernels that compute several layers each, as functions of a module; equal problems share a function."""

    def __init__(self, builder: relax.BlockBuilder, target: tvm.target.Target) -> None:
        self._builder, self._target = builder, target
        self._kernels: dict[FusedProblem, tuple[relax.GlobalVar, dispatch.Selection]] = {}

    def call(self, found: FusedLayers) -> relax.Expr:
        """Return the expression that computes the output of several layers by their kernel."""
        function, _ = self._kernel(found.problem)
        *_, (shape, dtype) = with_sizes(found.problem.workload, found.sizes).operands.values()
        call, wanted = relax.call_tir(function, found.operands(), relax.TensorType(shape, dtype)), found.output.ty
        return call if same_sizes(wanted, shape) else relax.op.reshape(call, wanted.shape)

    def layer(self, found: FusedLayers, convolution: Convolution, reason: Callable[[str], str] = str) -> Layer:
        """Return the `Layer` of one of the layers; `reason` may add to the reason for the kernel."""
        function, selection = self._kernel(found.problem)
        config, why = msgspec.to_builtins(selection.config), reason(f"{found.reason}; {selection.reason}")
        return Layer(convolution, f"tvmconv {selection.name}", config, why, str(function.name_hint))

    def _kernel(self, problem: FusedProblem) -> tuple[relax.GlobalVar, dispatch.Selection]:
        """Return the function and the selection of a problem's kernel; a new kernel is added to the module."""
        if problem not in self._kernels:
            selection = dispatch.select(problem, self._target)
            ranges, kind = [dispatch.Range(1, problem, selection)], dispatch.algorithm_of(selection.name)
            self._kernels[problem] = add_kernel(self._builder, ranges, self._target, kind, False).function, selection
        return self._kernels[problem]


def add_kernel(
    builder: relax.BlockBuilder,
    ranges: Sequence[dispatch.Range],
    target: tvm.target.Target,
    kind: str,
    constant: bool,
    positions: Mapping[str, lowering.Subtensor] | None = None,
) -> NetworkKernel:
    """Add a function with the kernels for ranges of batches to the module; `constant` says if the weight is one.

    Operands in `positions`, by their names, are parts of larger tensors, which the function takes instead.

    The function's name contains the kind, and is the same in all networks: the source of equal functions is compiled
    once.
    """
    content: list[object] = [(least, problem.to_json(), str(selection.config)) for least, problem, selection in ranges]
    content += sorted(positions.items()) if positions else []
    name = f"tvmconv_{kind}_{sha256(repr((content, constant)).encode()).hexdigest()[:12]}"
    key = _name_to_keep(name, content, ranges, target)
    if key is not None and (known := lowering.kept_function(key)) is not None:
        laid_out = tuple(each and Packing(lowering.from_bitcode(each[0]), *each[1:]) for each in known.packings)
        return NetworkKernel(builder.add_func(known.function, name), laid_out, known.workspace)
    parts, weights, packings = [], [], list[Packing | None]()
    for least, problem, selection in ranges:
        func, packing = lowering.lower(problem, selection, target, name), None
        func = lowering.with_subtensors(func, positions, target) if positions else func
        if constant:
            count = len(func.params)
            func, packing = split_packing(func)
            weights.append(1 + len(func.params) - count)
            packings.append(packing)
        parts.append(lowering.RangeFunction(least, *take_out(func, target)))
    func, workspace = lowering.join(parts, weights)
    func = lowering.limited(func, workspace, target)
    if key is not None:
        kept = [each and (lowering.bitcode(each.code), each.specs, each.keeps_weight) for each in packings]
        func = lowering.declare(key, func, workspace, kept)
    return NetworkKernel(builder.add_func(func, name), tuple(packings), workspace)


def _name_to_keep(
    name: str, content: object, ranges: Sequence[dispatch.Range], target: tvm.target.Target
) -> str | None:
    """Return the name by which a function is kept on disk; None on a CPU, and for templates that are not tvmconv's."""
    is_ours = all(dispatch.TEMPLATES.get(each.selection.name) is each.selection.template for each in ranges)
    if not backend_of(target).keeps_kernels or not is_ours:
        return None
    templates = [each.selection.name for each in ranges]
    return lowering.name_for(name, content, templates, str(target), str(resolve_target("llvm")))


def reason_of(ranges: Sequence[dispatch.Range]) -> str:
    """Return the reasons for the kernels of all ranges, each after the first one with the size it begins at."""
    reason = ranges[0].selection.reason
    for least, problem, selection in ranges[1:]:
        sizes = f"{least} pixels of all images" if problem.has_open_planes else f"a batch of {least}"
        reason += f"; from {sizes} on {selection.name}, {selection.reason}"
    return reason


def output_of(
    kernel: NetworkKernel,
    workload: ConvWorkload,
    operands: Sequence[relax.Expr],
    shape: tuple[int, ...] | None = None,
    partly_filled: relax.Var | None = None,
) -> relax.Expr:
    """Return the expression that computes a workload's output with a kernel.

    `shape` is the output's shape, if that is not the shape in memory by the workload's layout. Where the kernel stores
    the output in a larger tensor, `partly_filled`, the expression is that tensor.
    """
    shape_in_memory, dtype = workload.operands["output"]
    outputs = [
        relax.TensorType(*each) for each in ((shape or shape_in_memory, dtype), *kernel.workspace.sized(workload))
    ]
    if partly_filled is None:
        call = relax.call_tir(kernel.function, operands, outputs)
    else:
        inplace_indices = [len(operands), *(-1 for _ in outputs[1:])]
        call = relax.call_tir_inplace(kernel.function, [*operands, partly_filled], inplace_indices, outputs)
    return relax.TupleGetItem(call, 0) if kernel.workspace.parameters else call
