"""The pass that gives convolutions the kernels of tvmconv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import msgspec
import numpy as np
import tvm
from tvm import relax

from .. import dispatch, lowering
from ..workload import ConvWorkload, Epilogue
from ..workspace import Workspace, take_out
from .constants import constant_value, static_shape
from .convolutions import describe, describe_linear, is_convolution, is_linear
from .epilogue import Tail, follow, padding_before
from .graph import Block, blocks_of, rebind
from .layers import Convolution, Layer
from .packing import Packing, split_packing
from .sparse_kernels import SparseChoice, SparseKernels


@dataclass(frozen=True)
class Site:
    """Where a convolution stands in a module."""

    convolution: Convolution
    workload: ConvWorkload | None
    """What a kernel is made for; None for a convolution that is left to TVM."""
    operands: tuple[relax.Expr, ...]
    """What the kernel reads, in the order of `workload.operands`, but maybe in another shape."""
    output: relax.Var
    """The variable that it computes."""
    linear: bool = False
    """Whether it is a linear layer, whose weight is (C, K)."""

    @property
    def weight(self) -> np.ndarray | None:
        """The weight in the workload's shape, None for one that is computed."""
        if self.workload is None or (weight := constant_value(self.operands[1])) is None:
            return None
        return (weight.T if self.linear else weight).reshape(self.workload.w_shape)


def find_convolutions(mod: tvm.IRModule) -> list[Site]:
    """The convolutions and linear layers of "main" in graph order, each with everything that its kernel can take in."""
    sites = []
    for block in blocks_of(mod):
        taken: set[relax.Var] = set()
        for var, value in block.values.items():
            if is_convolution(value):
                sites.append(_site(var, value, describe(str(var.name), value), block, taken))
            elif is_linear(value):
                sites.append(_site(var, value, describe_linear(str(var.name), value), block, taken))
    return sites


def sites_for(mod: tvm.IRModule, target: tvm.target.Target) -> list[Site]:
    """Those that get kernels on a target, and the convolutions that do not: on a GPU linear layers are TVM's."""
    return [site for site in find_convolutions(mod) if not (site.linear and target.kind.name == "cuda")]


def use_kernels(
    mod: tvm.IRModule, target: tvm.target.Target, sparse: str = "auto"
) -> tuple[tvm.IRModule, tuple[Layer, ...]]:
    """The module with a scheduled kernel for each convolution that can have one, and what every convolution got.

    Padding with zeros before a convolution goes into its kernel, and so do bias, factors, batch norm, an addition of
    another tensor and clips behind it. A linear layer is a convolution with kernels and images of one element.
    Convolutions with equal workloads share a kernel. Weights that are constants are laid out here and now as the kernel
    wants them. Where `sparse`, one of `MODES`, says so, they are compiled in: such kernels are modules of their own, in
    the attribute "external_mods".

    Before: `y = R.nn.conv2d(x, w)`, `z = R.add(y, bias)`, `output = R.nn.relu(z)`.
    After: `output = R.call_tir(tvmconv_direct_0, (x, packed, shift))`.
    """
    sites = sites_for(mod, target)
    builder = relax.BlockBuilder(mod)
    selections: dict[ConvWorkload, dispatch.Selection] = {}
    kernels: dict[tuple[ConvWorkload, bool], tuple[relax.GlobalVar, Packing | None, Workspace]] = {}
    sparse_kernels = SparseKernels(target, sparse, [site.workload for site in sites if site.workload is not None])
    calls, layers = {}, []
    for site in sites:
        if site.workload is None:
            layers.append(Layer(site.convolution, "TVM", None, str(site.convolution.obstacle)))
            continue
        workload, weight = site.workload, site.weight
        scale = constant_value(site.operands[2]) if workload.epilogue.scale else None
        if choice := sparse_kernels.choose(site.convolution.name, workload, weight, scale):
            calls[site.output] = _sparse_call(site, choice)
            layers.append(Layer(site.convolution, f"tvmconv {choice.template}", choice.config, choice.reason))
            continue
        if workload not in selections:
            selections[workload] = dispatch.select(workload, target)
        selection, key = selections[workload], (workload, weight is not None)
        if key not in kernels:
            name = f"tvmconv_{selection.name.split('/')[1]}_{len(kernels)}"
            kernel, packing = lowering.lower(workload, selection, target, name), None
            if weight is not None:
                kernel, packing = split_packing(kernel)
            kernel, workspace = take_out(kernel, target)
            kernels[key] = builder.add_func(kernel, name), packing, workspace
        calls[site.output] = _call(site, weight, *kernels[key])
        config = msgspec.to_builtins(selection.config)
        layers.append(Layer(site.convolution, f"tvmconv {selection.name}", config, selection.reason))
    mod = rebind(builder.get(), calls)
    if modules := sparse_kernels.compiled():
        mod = mod.with_attr("external_mods", modules)
    return mod, tuple(layers)


def _call(
    site: Site, weight: np.ndarray | None, kernel: relax.GlobalVar, packing: Packing | None, workspace: Workspace
) -> relax.Expr:
    """What computes a site's output; tensors with one spatial axis get a second one of size 1 for the kernel.

    To Relax the workspace is further outputs that nobody reads: it plans their memory with all other.
    """
    assert site.workload is not None
    *shapes, output = site.workload.operands.values()
    operands = [_shaped(operand, shape) for operand, (shape, _) in zip(site.operands, shapes, strict=True)]
    if weight is not None:
        operands[1] = relax.const(packing(weight) if packing else weight)
    outputs = [relax.TensorType(*each) for each in (output, *workspace.parameters)]
    call = relax.call_tir(kernel, operands, outputs)
    if workspace.parameters:
        call = relax.TupleGetItem(call, 0)
    return _reshaped(call, site)


def _sparse_call(site: Site, choice: SparseChoice) -> relax.Expr:
    """The same for a kernel that has the weight and the scale in it."""
    assert site.workload is not None
    *names, output = site.workload.operands
    operands = dict(zip(names, site.operands, strict=True))
    wanted = choice.workload.operands
    taken = [_shaped(operand, wanted[name][0]) for name, operand in operands.items() if name not in ("w", "scale")]
    return _reshaped(relax.call_dps_packed(choice.name, taken, relax.TensorType(*wanted[output])), site)


def _reshaped(call: relax.Expr, site: Site) -> relax.Expr:
    """A kernel's output as the model has it."""
    assert site.workload is not None
    shape = static_shape(site.output.ty)
    return call if shape == site.workload.output_shape else relax.op.reshape(call, site.output.ty.shape)


def _shaped(operand: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return operand if static_shape(operand.ty) == shape else relax.op.reshape(operand, shape)


def _site(var: relax.Var, call: relax.Call, convolution: Convolution, block: Block, taken: set[relax.Var]) -> Site:
    """The site of a call; `taken` has the additions that kernels have taken in, and gets this one's."""
    if convolution.workload is None:
        return Site(convolution, None, (), var)
    data, padding = padding_before(call.args[0], block)
    tail = follow(var, block, taken)
    if tail.addition is not None:
        taken.add(tail.addition)
    workload = _with_surroundings(convolution.workload, padding, tail)
    operands = [data, call.args[1]]
    operands += [relax.const(vector.astype(np.float32)) for vector in (tail.scale, tail.shift) if vector is not None]
    operands += [tail.residual] if tail.residual is not None else []
    convolution = replace(convolution, description=str(workload), workload=workload)
    return Site(convolution, workload, tuple(operands), tail.output, is_linear(call))


def _with_surroundings(workload: ConvWorkload, padding: tuple[int, int, int, int], tail: Tail) -> ConvWorkload:
    top, left, bottom, right = padding
    epilogue = Epilogue(
        scale=tail.scale is not None,
        shift=tail.shift is not None,
        residual=tail.residual is not None,
        low=tail.low if isfinite(tail.low) else None,
        high=tail.high if isfinite(tail.high) else None,
    )
    return msgspec.structs.replace(
        workload,
        height=workload.height - top - bottom,
        width=workload.width - left - right,
        padding=tuple(a + b for a, b in zip(workload.padding, padding, strict=True)),
        epilogue=epilogue,
    )
