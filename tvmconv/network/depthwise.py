"""The pass that gives depthwise convolutions the kernels of tvmconv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import msgspec
import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from .. import dispatch, lowering
from ..workload import ConvWorkload, Epilogue
from .constants import constant_value
from .convolutions import Convolution, describe, is_convolution
from .epilogue import Block, Tail, follow, padding_before
from .network import Layer


@dataclass(frozen=True)
class Site:
    """Where a convolution stands: what its kernel reads, and the variable that it computes."""

    convolution: Convolution
    operands: tuple[relax.Expr, ...]
    output: relax.Var


def find_convolutions(mod: tvm.IRModule) -> list[Site]:
    """The convolutions of "main" in graph order; a depthwise one with everything that its kernel can take in."""
    return [
        _site(var, value, block)
        for block in map(Block, _dataflow_blocks(mod["main"]))
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
    supported = [site.convolution.workload for site in sites if site.convolution.obstacle is None]
    selections = {workload: dispatch.select(workload, target) for workload in supported if workload is not None}
    builder = relax.BlockBuilder(mod)
    kernels = {}
    for index, (workload, selection) in enumerate(selections.items()):
        name = f"tvmconv_depthwise_{index}"
        kernels[workload] = builder.add_func(lowering.lower(workload, selection, target, name), name)
    mod = builder.get()

    calls, layers = {}, []
    for site in sites:
        convolution, workload = site.convolution, site.convolution.workload
        if workload is None or convolution.obstacle is not None:
            layers.append(Layer(convolution, "TVM", None, str(convolution.obstacle)))
            continue
        calls[site.output] = relax.call_tir(kernels[workload], site.operands, site.output.ty)
        selection = selections[workload]
        config = msgspec.to_builtins(selection.config)
        layers.append(Layer(convolution, f"tvmconv {selection.name}", config, selection.reason))
    mod["main"] = _Rebind(mod, calls).visit_expr(mod["main"])
    return relax.transform.DeadCodeElimination()(mod), tuple(layers)


def _site(var: relax.Var, call: relax.Call, block: Block) -> Site:
    convolution, weight = describe(str(var.name), call), constant_value(call.args[1])
    if convolution.workload is None or convolution.obstacle is not None or weight is None:
        return Site(convolution, tuple(call.args), var)
    data, padding = padding_before(call.args[0], block)
    tail = follow(var, block)
    workload = _with_surroundings(convolution.workload, padding, tail)
    operands = [data, relax.const(weight.reshape(workload.w_shape))]
    operands += [relax.const(vector.astype(np.float32)) for vector in (tail.scale, tail.shift) if vector is not None]
    return Site(replace(convolution, description=str(workload), workload=workload), tuple(operands), tail.output)


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


def _dataflow_blocks(function: relax.Function) -> list[relax.DataflowBlock]:
    """All of them in order, those in the branches of an If too."""
    blocks: list[relax.DataflowBlock] = []

    @visitor
    class Collect(PyExprVisitor):  # type: ignore[misc]
        def visit_dataflow_block_(self, block: relax.DataflowBlock) -> None:
            blocks.append(block)

    Collect().visit_expr(function)
    return blocks


@mutator
class _Rebind(PyExprMutator):  # type: ignore[misc]
    """Gives variables other values; what only the old ones needed is left for dead code elimination."""

    def __init__(self, mod: tvm.IRModule, values: dict[relax.Var, relax.Expr]) -> None:
        super().__init__(mod)
        self._values = values

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(relax.VarBinding(binding.var, self._values.get(binding.var, binding.value)))
