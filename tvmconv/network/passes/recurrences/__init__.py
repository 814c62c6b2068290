"""The pass that gives the steps of recurrent layers, LSTM, GRU and plain RNNs, one function of the target each."""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvmconv.lowering import as_scheduled
from tvmconv.problem.errors import UnsupportedModelError
from tvmconv.targets import backend_of
from tvmconv.targets.devices import cpu_of

from ...graph.constants import constant_value
from ...graph.graph import blocks_of, call_of, rebind
from ...graph.layers import Convolution, Layer
from ...recurrence import NAME, layer_of
from ...sizes.facts import Size, python_text
from ..context import Context
from .cpu import recurrence_for_cpu, tiling_of
from .gpu import recurrence_for_gpu


def lower_recurrences(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with a function of the target for the steps of each recurrent layer, added to the context.

    Raises `UnsupportedModelError` for a layer that the target has no function for.

    Before: `y = R.nn.recurrence(gates, weight, h)`.
    After: `y = R.call_tir(tvmconv_rnn_0, (gates, weight in blocks, h))`.
    """
    target, builder = context.target, relax.BlockBuilder(mod)
    values: dict[relax.Var, relax.Expr] = {}
    functions: dict[int, tvm.ir.GlobalVar] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (call := call_of(value, NAME)) is not None:
                if layer_of(call).quantized and backend_of(target).on_gpu:
                    problem = "its products of integers are computed on CPUs alone"
                    raise UnsupportedModelError(f"{var.name} cannot be compiled for {target.kind.name}: {problem}")
                values[var] = _lowered(builder, call, target, functions)
                context.recurrences.append(_described(str(var.name), call, target, str(values[var].args[0].name_hint)))
    return rebind(builder.get(), values) if values else mod


def _described(name: str, call: relax.Call, target: tvm.target.Target, function: str) -> Layer:
    """Return the description of the steps of a recurrent layer, which a function computes."""
    layer, (steps, batch, _) = layer_of(call), call.args[0].ty.shape
    directions = f" in {len(layer.reverse)} directions" if len(layer.reverse) > 1 else ""
    words = f"{layer.kind} {python_text(steps)}x{python_text(batch)}x{layer.hidden}{directions} {layer.dtype}"
    sizes = [int(size) for size in (steps, batch) if isinstance(size, (int, tirx.IntImm))]
    products = 2 * len(layer.reverse) * len(layer.gates) * layer.hidden**2
    flops = prod(sizes) * products if len(sizes) == 2 else None
    kernel = f"tvmconv {backend_of(target).device_type}/recurrence"
    return Layer(Convolution(name, words, "", flops, None, None), kernel, None, "one function for all steps", function)


def _lowered(
    builder: relax.BlockBuilder, call: relax.Call, target: tvm.target.Target, functions: dict[int, tvm.ir.GlobalVar]
) -> relax.Call:
    """Return the call of the function for a target, with the weight in the layout that the function reads.

    `functions` are the module's functions so far, by the hashes of their code: equal layers share one.
    """
    layer, cpu = layer_of(call), None if backend_of(target).on_gpu else cpu_of(target)
    block = layer.channels if cpu is None else tiling_of(layer, cpu, call.args[0].ty.shape[1]).block
    operands = list(call.args)
    operands[1], weight = _in_blocks(operands[1], block)
    shapes = {name: each.ty.shape for name, each in zip(layer.operands, call.args, strict=True)} | {"weight": weight}
    dtypes = {name: str(each.ty.dtype) for name, each in zip(layer.operands, call.args, strict=True)}
    for name, ty in zip(layer.results, call.ty.fields, strict=True):
        shapes[name], dtypes[name] = ty.shape, layer.dtype
    sizes: dict[int, tirx.Var] = {}
    buffers = {
        name: tirx.decl_buffer([_variable(size, sizes) for size in shape], dtypes[name], name)
        for name, shape in shapes.items()
    }
    body = recurrence_for_gpu(layer, buffers) if cpu is None else recurrence_for_cpu(layer, cpu, buffers)
    func = tirx.PrimFunc(list(buffers.values()), body).with_attrs({"tirx.noalias": True, "s_tir": True})
    if (code := tvm_ffi.structural_hash(func)) not in functions:
        name = f"tvmconv_{layer.kind}_{len(functions)}"
        functions[code] = builder.add_func(as_scheduled(func, name), name)
    return relax.call_tir(functions[code], operands, list(call.ty.fields))


def _variable(size: Size, variables: dict[int, tirx.Var]) -> Size:
    """Return a variable of the function for an open size: from a shape (n // 4, 8) the function could not tell n.

    `variables` are those for the sizes before, by the hashes of the sizes.
    """
    if isinstance(size, (int, tirx.IntImm)):
        return size
    code = tvm_ffi.structural_hash(size, map_free_vars=False)
    return variables.setdefault(code, tirx.Var(f"size_{len(variables)}", size.ty.dtype))


def _in_blocks(weight: relax.Expr, block: int) -> tuple[relax.Expr, tuple[int, ...]]:
    """Return the weight (directions, hidden, gates, channels) as (directions, blocks, hidden, gates, block)."""
    directions, hidden, gates, channels = (int(size) for size in weight.ty.shape)
    split, axes = (directions, hidden, gates, channels // block, block), (0, 3, 1, 2, 4)
    shape = (directions, channels // block, hidden, gates, block)
    if (value := constant_value(weight)) is not None:
        return relax.const(value.reshape(split).transpose(axes), str(weight.ty.dtype)), shape
    return relax.op.permute_dims(relax.op.reshape(weight, split), axes), shape
