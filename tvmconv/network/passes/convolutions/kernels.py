"""The passes that plan and call the kernels of convolutions and linear layers.

`find_layers` begins the plan. Each pass `choose_...` or `plan_...` records a choice in the context and returns the
module unchanged; `call_kernels` puts calls of the kernels instead of the convolutions and of what these take in:
padding with zeros before them, and after them bias, factors, batch norm, an addition of another tensor, and an
activation.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import tvm
from tvm import relax
from tvm.runtime import Module

from tvmconv import dispatch
from tvmconv.compute import with_sizes
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.constants import COMPILED_IN
from tvmconv.problem.dtypes import FLOATS
from tvmconv.targets import backend_of
from tvmconv.targets.threads import usable_cpus

from ...graph.constants import same_sizes
from ...graph.graph import rebind
from ...graph.layers import Layer
from ...sites import Site
from ..context import Context, FusedLayers, LayerPlan, SparseChoice
from .concat_slices import concat_slices_of, pooling_of_concat_buffers, slices_of
from .functions import FusedKernels, NetworkKernel, add_kernel, output_of, reason_of
from .layouts import choose_layouts
from .sparse_kernels import SparseKernels


def choose_sparse(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Plan a sparse kernel for each weight that is to be compiled in, as `context.sparse` says."""
    layers = [layer for layer in context.plan.layers if layer.site.workload is not None]
    workloads = [layer.site.described for layer in layers]
    kernels = SparseKernels(context.target, context.sparse, workloads, context.precision)
    for layer in layers:
        site = layer.site
        if site.described.dtype in FLOATS:
            sizes = site.convolution.open_sizes
            layer.sparse = kernels.choose(site.convolution.name, site.described, site.weight, site.vectors, sizes)
    return mod


def plan_layouts(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Plan the layouts of tensors between the layers, as `choose_layouts` says.

    Sparse kernels and kernels of several layers read and store NCHW.
    """
    plan, layers = context.plan, context.plan.layers
    in_nchw = [layer.site.output for layer in layers if layer.sparse or layer.fused]
    sites = [layer.site for layer in layers]
    sites, plan.values = choose_layouts(mod, sites, context.target, in_nchw, context.precision)
    for layer, site in zip(layers, sites, strict=True):
        layer.site = site
    return mod


def choose_templates(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Plan the dense kernels: a template and a configuration for each range of open sizes, once for equal problems."""
    chosen: dict[Problem, tuple[dispatch.Range, ...]] = {}
    for layer in context.plan.layers:
        if layer.is_dense:
            problem = layer.site.problem(context.precision)
            if problem not in chosen:
                chosen[problem] = dispatch.select_ranges(problem, context.target)
            layer.ranges = chosen[problem]
    return mod


def plan_slices(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Plan which kernels read a slice of a larger tensor's channels without a copy."""
    plan = context.plan
    reading = [layer for layer in plan.layers if layer.ranges and all(map(_reads_slices, layer.ranges))]
    plan.slices = slices_of(mod, [layer.site for layer in reading], plan.values)
    for layer in reading:
        layer.slice = next((each for each in plan.slices.values() if layer.site.output in each.layers), None)
    return mod


def _reads_slices(kernel: dispatch.Range) -> bool:
    return kernel.problem.workload.layout in kernel.selection.layouts.strided_x


def plan_concat_slices(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Plan which kernels store their output directly in a concat buffer, as `concat_slices_of` says."""
    plan, every = context.plan, backend_of(context.target).any_strided_output
    storing = [layer for layer in plan.layers if layer.ranges and (every or all(map(_stores_slices, layer.ranges)))]
    concat_slices = concat_slices_of(mod, [layer.site for layer in storing], plan.values, plan.slices)
    for layer in storing:
        layer.concat_slice = concat_slices.get(layer.site.output)
    plan.values.update(pooling_of_concat_buffers(mod, plan.values, concat_slices))
    return mod


def _stores_slices(kernel: dispatch.Range) -> bool:
    return kernel.problem.workload.out_layout in kernel.selection.layouts.strided_output


def call_kernels(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with the planned kernels, each once for equal problems, and add the layers to the context.

    Weights that are constants are laid out here and now as the kernel reads them.

    Before: `y = R.nn.conv2d(x, w)`, `z = R.add(y, bias)`, `output = R.nn.relu(z)`.
    After: `output = R.call_tir(tvmconv_direct_0f3a91c2d47b, (x, packed, shift))`.
    """
    calls = _Calls(mod, context)
    for layer in context.plan.layers:
        context.convolutions.append(calls.layer(layer))
    return rebind(calls.builder.get(), {**context.plan.values, **calls.values})


class _Calls:
    """The calls of kernels that replace convolutions, and the functions that they call."""

    def __init__(self, mod: tvm.IRModule, context: Context) -> None:
        self.builder = relax.BlockBuilder(mod)
        self.values: dict[relax.Var, relax.Expr] = {}
        """The new values of variables."""
        self._context = context
        self._fused_kernels = FusedKernels(self.builder, context.target)
        self._kernels: dict[tuple[object, ...], NetworkKernel] = {}

    def layer(self, plan: LayerPlan) -> Layer:
        """Add the call of a layer's kernel; return the `Layer` that describes it."""
        site = plan.site
        if site.workload is None:
            return Layer(site.convolution, "TVM", None, _why(str(site.convolution.obstacle), site))
        if plan.sparse is not None:
            return self._sparse(site, plan.sparse)
        if plan.fused is not None:
            return self._fused(site, plan.fused)
        return self._dense(plan)

    def _sparse(self, site: Site, choice: SparseChoice) -> Layer:
        self.values[site.output] = _sparse_call(site, choice)
        config, why = msgspec.to_builtins(choice.selection.config), _why(choice.reason, site)
        return Layer(site.convolution, f"tvmconv {choice.selection.name}", config, why, choice.name)

    def _fused(self, site: Site, found: FusedLayers) -> Layer:
        if found.output not in self.values:
            self.values[found.output] = self._fused_kernels.call(found)
        return self._fused_kernels.layer(found, site.convolution, lambda reason: _why(reason, site))

    def _dense(self, plan: LayerPlan) -> Layer:
        site, concat_slice, selection = plan.site, plan.concat_slice, plan.ranges[0].selection
        problem, weight = site.problem(self._context.precision), site.weight
        slices = {"x": plan.slice, "output": concat_slice}
        positions = {name: each.position for name, each in slices.items() if each is not None}
        if (key := (problem, weight is not None, *positions.items())) not in self._kernels:
            kind = dispatch.algorithm_of(selection.name)
            self._kernels[key] = add_kernel(
                self.builder, plan.ranges, self._context.target, kind, weight is not None, positions
            )
        kernel = self._kernels[key]
        output = site.output if concat_slice is None or not concat_slice.completes_concat else concat_slice.concat
        self.values[output] = _call(plan, weight, kernel)
        config, why = msgspec.to_builtins(selection.config), _why(reason_of(plan.ranges), site)
        return Layer(site.convolution, f"tvmconv {selection.name}", config, why, str(kernel.function.name_hint))


def compile_sparse_kernels(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with the sparse kernels, which are modules, in its attribute "external_mods".

    Their compilation is parallel except for LLVM's part.
    """
    choices = {layer.sparse.name: layer.sparse for layer in context.plan.layers if layer.sparse}

    def compiled(choice: SparseChoice) -> Module:
        return build_kernel(
            choice.problem, choice.selection, context.target, choice.constants, choice.name
        ).executable.mod

    with ThreadPoolExecutor(usable_cpus()) as pool:
        modules = list(pool.map(compiled, choices.values()))
    return mod.with_attr("external_mods", modules) if modules else mod


def _why(reason: str, site: Site) -> str:
    """Return the reason for a kernel, and why it is in floating point if its operands are quantized."""
    in_float = site.convolution.in_float
    return reason if in_float is None else f"{reason}; in {site.output.ty.dtype}: {in_float}"


def _call(plan: LayerPlan, weight: np.ndarray | None, kernel: NetworkKernel) -> relax.Expr:
    """Return the expression that computes a site's output with a kernel, as its slices of other tensors say.

    Tensors with one spatial axis get a second one of size 1 for the kernel. To Relax the workspace is further outputs
    that nobody reads, so that it plans their memory together with all other memory.
    """
    site, concat_slice = plan.site, plan.concat_slice
    workload = site.shaped
    *shapes, _ = workload.in_nchw().operands.values()
    operands = [_shaped(operand, shape) for operand, (shape, _) in zip(site.operands, shapes, strict=True)]
    if plan.slice is not None:
        operands[0] = plan.slice.source
    if weight is not None:
        constants = [packing(weight) if packing else [weight] for packing in kernel.packings]
        operands[1:2] = [relax.const(each) for packed in constants for each in packed]
    if concat_slice is None:
        return _reshaped(output_of(kernel, workload, operands), site)
    shape = concat_slice.position.shape(workload.operands["output"][0])
    return output_of(kernel, workload, operands, shape, concat_slice.partly_filled)


def _sparse_call(site: Site, choice: SparseChoice) -> relax.Expr:
    """Return the expression that computes a site's output with a sparse kernel, which holds the constants."""
    *names, output = site.described.operands
    operands = dict(zip(names, site.operands, strict=True))
    wanted = with_sizes(choice.workload, site.sizes).operands
    inputs = [_shaped(operand, wanted[name][0]) for name, operand in operands.items() if name not in COMPILED_IN]
    return _reshaped(relax.call_dps_packed(choice.name, inputs, relax.TensorType(*wanted[output])), site)


def _reshaped(call: relax.Expr, site: Site) -> relax.Expr:
    """Return a kernel's output in the shape that the model has."""
    shape = site.shaped.output_shape
    return call if same_sizes(site.output.ty, shape) else relax.op.reshape(call, site.output.ty.shape)


def _shaped(operand: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return operand if same_sizes(operand.ty, shape) else relax.op.reshape(operand, shape)
