"""The operator of Relax that runs the steps of a recurrent layer: LSTM, GRU or a plain RNN.

The products of a layer's input are a linear layer before it, as `recurrent_layers` builds it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import tvm
from tvm import relax
from tvm.ir import register_op_attr

from .cells import Recurrence

NAME = "nn.recurrence"
"""The name of the operator without "relax."; the layer is its attribute "layer", as JSON."""


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
    return relax.Call(tvm.ir.Op.get(f"relax.{NAME}"), [operands[name] for name in layer.operands], attributes)


def layer_of(call: relax.Call) -> Recurrence:
    return msgspec.json.decode(str(call.attrs["layer"]), type=Recurrence)


def _type(call: relax.Call, _: relax.BlockBuilder) -> relax.TupleType:
    layer = layer_of(call)
    steps, batch, _ = call.args[0].ty.shape
    last = relax.TensorType((len(layer.reverse), batch, layer.hidden), layer.dtype)
    y = relax.TensorType((steps, *last.shape), layer.dtype)
    return relax.TupleType([y, *[last] * (len(layer.results) - 1)])


register_op_attr(f"relax.{NAME}", "FInferType", _type)
register_op_attr(f"relax.{NAME}", "FPurity", True)
