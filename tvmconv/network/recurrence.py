"""The operator of Relax that runs the steps of a recurrent layer: LSTM, GRU or a plain RNN.

The products of a layer's input are a linear layer in front of it, as `recurrent_layers` builds it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import tvm
from tvm import relax, tirx
from tvm.ir import register_op_attr

from ..lowering import as_scheduled
from ..targets import backend_of
from ..targets.devices import cpu_of
from .constants import constant_value
from .faults import Refused
from .gpu.recurrence import recurrence_for_gpu
from .recurrence_cells import Recurrence
from .recurrence_cpu import recurrence_for_cpu, tiling_of

NAME = "relax.nn.recurrence"
"""The name of the operator; the layer is its attribute "layer", as JSON."""


def recurrence(layer: Recurrence, operands: Mapping[str, relax.Expr]) -> relax.Call:
    """Return the call of the operator: a tuple of the results of the layer.

    Its operands are, by their names in `Recurrence.operands`:
    - gates (steps, batch, directions * gates * channels), the products of the input and all sums of biases,
    - weight (directions, hidden, gates, channels), by which states are multiplied,
    - h and c (directions, batch, hidden), the first states,
    - bias (directions, channels), which is added to the product of GRU's state before the reset,
    - peepholes (directions, 3, channels), for the gates "iof",
    - scales (directions, gates, channels), by which products of integers are multiplied,
    - lengths (batch,) in int32, the steps of each row that count.
    What channels have beyond the hidden ones is 0. The results are y (steps, directions, batch, hidden), and last_h and
    last_c (directions, batch, hidden).
    """
    attributes = {"layer": msgspec.json.encode(layer).decode()}
    return relax.Call(tvm.ir.Op.get(NAME), [operands[name] for name in layer.operands], attributes)


def _layer(call: relax.Call) -> Recurrence:
    return msgspec.json.decode(str(call.attrs["layer"]), type=Recurrence)


def _type(call: relax.Call, _: relax.BlockBuilder) -> relax.TupleType:
    layer = _layer(call)
    steps, batch, _ = call.args[0].ty.shape
    last = relax.TensorType((len(layer.reverse), batch, layer.hidden), layer.dtype)
    y = relax.TensorType((steps, *last.shape), layer.dtype)
    return relax.TupleType([y, *[last] * (len(layer.results) - 1)])


def _lowered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the call of the function for the current target, with the weight as that reads it."""
    layer, target = _layer(call), tvm.target.Target.current()
    on_gpu = backend_of(target).on_gpu
    if layer.quantized and on_gpu:
        raise Refused("its quantized products are computed on CPUs alone")
    cpu = None if on_gpu else cpu_of(target)
    batch = call.args[0].ty.shape[1]
    block = layer.channels if cpu is None else tiling_of(layer, cpu, batch).block
    operands = list(call.args)
    operands[1] = _in_blocks(builder, operands[1], block)
    shapes = {name: (each.ty.shape, str(each.ty.dtype)) for name, each in zip(layer.operands, operands, strict=True)}
    types = _type(call, builder).fields
    shapes |= {name: (ty.shape, str(ty.dtype)) for name, ty in zip(layer.results, types, strict=True)}
    buffers = {name: tirx.decl_buffer(list(shape), dtype, name) for name, (shape, dtype) in shapes.items()}
    body = recurrence_for_gpu(layer, buffers) if cpu is None else recurrence_for_cpu(layer, cpu, buffers)
    func = tirx.PrimFunc(list(buffers.values()), body).with_attrs({"tirx.noalias": True, "s_tir": True})
    function = builder.add_func(as_scheduled(func, layer.kind), layer.kind)
    return relax.call_tir(function, operands, list(types))


def _in_blocks(builder: relax.BlockBuilder, weight: relax.Expr, block: int) -> relax.Expr:
    """Return the weight (directions, hidden, gates, channels) as (directions, blocks, hidden, gates, block)."""
    directions, hidden, gates, channels = (int(size) for size in weight.ty.shape)
    shape, axes = (directions, hidden, gates, channels // block, block), (0, 3, 1, 2, 4)
    if (value := constant_value(weight)) is not None:
        return relax.const(value.reshape(shape).transpose(axes), str(weight.ty.dtype))
    return builder.emit(relax.op.permute_dims(builder.emit(relax.op.reshape(weight, shape)), axes))


register_op_attr(NAME, "FInferType", _type)
register_op_attr(NAME, "FPurity", True)
register_op_attr(NAME, "FLegalize", _lowered)
