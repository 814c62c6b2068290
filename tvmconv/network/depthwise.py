"""The pass that gives depthwise convolutions the kernels of tvmconv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import msgspec
import numpy as np
import tvm
from tvm import relax

from .. import dispatch, lowering
from ..workload import ConvWorkload, Epilogue
from .convolutions import Convolution, Layer, describe, is_convolution
from .epilogue import Tail, follow, padding_before
from .graph import Block, blocks_of, rebind


@dataclass(frozen=True)
class Site:
    """Where a convolution stands in a module."""

    convolution: Convolution
    workload: ConvWorkload | None
    """What a kernel is made for; None for a convolution that is left to TVM."""
    operands: tuple[relax.Expr, ...]
    """What the kernel reads, in the order of `workload.operands`."""
    output: relax.Var
    """The variable that it computes."""


def find_convolutions(mod: tvm.IRModule) -> list[Site]:
    """The convolutions of "main" in graph order; a depthwise one with everything that its kernel can take in."""
    return [
        _site(var, value, block)
        for block in blocks_of(mod)
        for var, value in block.values.items()
        if is_convolution(value)
    ]


def use_depthwise_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[tvm.IRModule, tuple[Layer, ...]]:
    """The module with a scheduled kernel for each depthwise convolution, and what every convolution got.

    Padding with zeros before a convolution, and bias, batch norm and clips behind it, go into its kernel. Convolutions
    with equal workloads share one kernel.

    Before: `y = R.nn.conv2d(x, w, groups=8)`, `z = R.add(y, bias)`, `output = R.nn.relu(z)`.
    After: `output = R.call_tir(tvmconv_depthwise_0, (x, w, shift))`.
    """
    sites = find_convolutions(mod)
    selections = {site.workload: dispatch.select(site.workload, target) for site in sites if site.workload is not None}
    builder = relax.BlockBuilder(mod)
    kernels = {}
    for index, (workload, selection) in enumerate(selections.items()):
        name = f"tvmconv_depthwise_{index}"
        kernels[workload] = builder.add_func(lowering.lower(workload, selection, target, name), name)

    calls, layers = {}, []
    for site in sites:
        if site.workload is None:
            layers.append(Layer(site.convolution, "TVM", None, str(site.convolution.obstacle)))
            continue
        calls[site.output] = relax.call_tir(kernels[site.workload], site.operands, site.output.ty)
        selection = selections[site.workload]
        config = msgspec.to_builtins(selection.config)
        layers.append(Layer(site.convolution, f"tvmconv {selection.name}", config, selection.reason))
    return rebind(builder.get(), calls), tuple(layers)


def _site(var: relax.Var, call: relax.Call, block: Block) -> Site:
    convolution = describe(str(var.name), call)
    if convolution.workload is None or convolution.obstacle is not None:
        return Site(convolution, None, (), var)
    data, padding = padding_before(call.args[0], block)
    tail = follow(var, block)
    workload = _with_surroundings(convolution.workload, padding, tail)
    operands = [data, relax.const(call.args[1].value.numpy().reshape(workload.w_shape))]
    operands += [relax.const(vector.astype(np.float32)) for vector in (tail.scale, tail.shift) if vector is not None]
    convolution = replace(convolution, description=str(workload), workload=workload)
    return Site(convolution, workload, tuple(operands), tail.output)


def _with_surroundings(workload: ConvWorkload, padding: tuple[int, int, int, int], tail: Tail) -> ConvWorkload:
    top, left, bottom, right = padding
    epilogue = Epilogue(
        scale=tail.scale is not None,
        shift=tail.shift is not None,
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
