"""Converters of ONNX's LSTM, GRU and RNN, and of ONNX Runtime's DynamicQuantizeLSTM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmconv.network.graph.constants import Array, constant_value, sizes_of
from tvmconv.network.graph.faults import Refused
from tvmconv.network.recurrence.cells import ACTIVATIONS, Activation, Kind, Recurrence
from tvmconv.network.recurrence.layers import Numbers, States, recurrent_layer
from tvmconv.problem.dtypes import NARROW

from ..node import OPEN_HINT, Converter, Node

DEFAULTS: dict[str, tuple[str, ...]] = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
"""The activations of a direction where a node names none."""

NUMBERS: dict[str, tuple[float | None, ...]] = {
    "affine": (None, None),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "scaledtanh": (None, None),
    "thresholdedrelu": (1.0,),
}
"""The numbers that activations take, alpha and beta, with the defaults of ONNX's operators; None for no default."""

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def recurrent(kind: Kind) -> Converter:
    """Return the converter of an operator."""

    def convert(node: Node) -> relax.Expr:
        x, w, r = node.operands[:3]
        hidden = _hidden(node, r.ty, 2)
        dtype = "float32" if str(x.ty.dtype) in NARROW else str(x.ty.dtype)
        layer = _layer(node, kind, hidden, dtype)
        gates = len(layer.gates) * hidden
        directions = len(layer.reverse)
        inputs = (sizes_of(x.ty) or (None,))[-1]
        _require(node, w, "W", (directions, gates, inputs))
        _require(node, r, "R", (directions, gates, hidden))
        numbers = Numbers(
            _cast(node, w, dtype),
            _cast(node, r, dtype),
            _biases(node, directions, gates, dtype),
            _peepholes(node, layer),
        )
        return _converted(node, layer, numbers)

    return convert


def dynamic_quantize_lstm(node: Node) -> relax.Expr:
    """Convert DynamicQuantizeLSTM, whose weights (directions, inputs, gates * hidden) are integers.

    Their zero points are taken from them here and now.
    """
    x, _, r = node.operands[:3]
    hidden = _hidden(node, r.ty, 1)
    layer = _layer(node, "lstm", hidden, "float32", quantized=True)
    directions, gates = len(layer.reverse), 4 * hidden
    inputs = (sizes_of(x.ty) or (None,))[-1]
    weights, scales = [], []
    for index, name, rows in ((1, "W", inputs), (2, "R", hidden)):
        _require(node, node.operands[index], name, (directions, rows, gates))
        first = 8 if name == "W" else 10
        weight, scale = node.constant(index, name), node.constant(first, f"{name}_scale")
        zero_point = node.constant(first + 1, f"{name}_zero_point")
        if weight is None or scale is None:
            raise Refused(f"its {name if weight is None else f'{name}_scale'} is missing")
        integers = weight.astype("int32") - (0 if zero_point is None else _by_column(zero_point, gates).astype("int32"))
        weights.append(relax.const(integers.transpose(0, 2, 1).astype("float32")))
        every = np.broadcast_to(_by_column(scale, gates)[:, 0], (directions, gates))
        scales.append(relax.const(every.astype("float32")))
    biases, peepholes = _biases(node, directions, gates, "float32"), _peepholes(node, layer)
    numbers = Numbers(weights[0], weights[1], biases, peepholes, (scales[0], scales[1]))
    return _converted(node, layer, numbers)


def _by_column(value: Array, columns: int) -> Array:
    """Return numbers for each direction, or for each of its columns too, as (directions, 1, columns or 1)."""
    if value.size % columns and value.ndim > 1:
        raise Refused(f"it has scales or zero points of the shape {value.shape}", "give one for each column")
    return value.reshape(-1, 1, 1) if value.ndim < 2 else value.reshape(value.shape[0], 1, -1)


def _converted(node: Node, layer: Recurrence, numbers: Numbers) -> relax.Expr:
    """Return the results that a node has, of ONNX's Y, Y_h and Y_c, in its layout and the type of its input."""
    x = node.operands[0]
    dtype, batch_first = str(x.ty.dtype), node.attributes.get("layout", 0) == 1
    steps, batch, _ = sizes_of(x.ty) or ()
    if batch_first:
        steps, batch = batch, steps
        x = node.emit(relax.op.permute_dims(x, (1, 0, 2)))

    def state(index: int, name: str) -> relax.Expr | None:
        if (value := node.operand(index)) is None:
            return None
        if batch_first:
            value = node.emit(relax.op.permute_dims(value, (1, 0, 2)))
        _require(node, value, name, (len(layer.reverse), None, layer.hidden))
        return _cast(node, value, layer.dtype)

    lengths = node.operand(4)
    states = States(
        state(5, "initial_h"),
        state(6, "initial_c") if layer.kind == "lstm" else None,
        None if lengths is None else _cast(node, lengths, "int32"),
    )
    results = recurrent_layer(node.builder, layer, _cast(node, x, layer.dtype), numbers, states)
    if batch_first:
        axes = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
        results = [node.emit(relax.op.permute_dims(*each)) for each in zip(results, axes, strict=False)]
    results = [_cast(node, each, dtype) for each in results[: node.outputs]]
    return results[0] if node.outputs == 1 else relax.Tuple(results)


def _layer(node: Node, kind: Kind, hidden: int, dtype: str, quantized: bool = False) -> Recurrence:
    """Return the layer that a node's attributes describe."""
    if sizes_of(node.operands[0].ty) is None or node.operands[0].ty.ndim != 3:
        raise Refused("its input has no known number of axes, or not three", OPEN_HINT)
    direction = node.text("direction", "forward").lower()
    if direction not in DIRECTIONS:
        raise Refused(f"its direction is {direction!r}, none of {', '.join(DIRECTIONS)}")
    clip = node.attributes.get("clip")
    reverse = DIRECTIONS[direction]
    return Recurrence(
        kind,
        hidden,
        reverse,
        _activations(node, kind, len(reverse)),
        float(clip) if clip else None,
        linear_before_reset=kind == "gru" and bool(node.attributes.get("linear_before_reset", 0)),
        input_forget=kind == "lstm" and bool(node.attributes.get("input_forget", 0)),
        peepholes=kind == "lstm" and node.operand(7) is not None,
        lengths=node.operand(4) is not None,
        quantized=quantized,
        dtype=dtype,
    )


def _activations(node: Node, kind: Kind, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction; those that take numbers take the next ones of the node's."""
    given = [_text(name) for name in node.attributes.get("activations") or ()]
    count = len(DEFAULTS[kind])
    names = given or [*DEFAULTS[kind]] * directions
    if len(names) != count * directions:
        raise Refused(f"it has {len(names)} activations, where {kind.upper()} has {count} for each direction")
    if unknown := [name for name in names if name not in ACTIVATIONS]:
        raise Refused(f"its activation {unknown[0]!r} is none of ONNX's")
    numbers = [iter(node.attributes.get(name) or ()) for name in ("activation_alpha", "activation_beta")]

    def values(name: str) -> Iterator[float]:
        for default, left in zip(NUMBERS.get(name, ()), numbers, strict=False):
            value = next(left, default)
            if value is None:
                raise Refused(f"its activation {name!r} has no activation_alpha or activation_beta, nor ONNX a default")
            yield float(value)

    found = [Activation(name, *values(name)) for name in names]
    return tuple(tuple(found[first : first + count]) for first in range(0, len(found), count))


def _text(name: Any) -> str:
    return (name.decode() if isinstance(name, bytes) else str(name)).lower()


def _hidden(node: Node, ty: relax.TensorType, axis: int) -> int:
    """Return the channels of the state, by the weight of it."""
    sizes = sizes_of(ty)
    hidden = sizes[axis] if sizes is not None and len(sizes) == 3 else None
    if not isinstance(hidden, int) or hidden < 1:
        raise Refused("the shape of its R is known only when the model runs", OPEN_HINT)
    stated = node.attributes.get("hidden_size")
    if stated is not None and stated != hidden:
        raise Refused(f"its hidden_size is {stated}, and its R is for {hidden}")
    return hidden


def _require(node: Node, value: Any, name: str, shape: Sequence[Any]) -> None:
    """Raise `Refused` for an operand of another shape; None stands for any size."""
    sizes = sizes_of(value.ty)
    if sizes is None or len(sizes) != len(shape):
        raise Refused(f"its {name} has no known shape of {len(shape)} axes", OPEN_HINT)
    pairs = zip(sizes, shape, strict=True)
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise Refused(f"its {name} has the shape {tuple(sizes)}, where its input and R ask for {tuple(shape)}")


def _biases(node: Node, directions: int, gates: int, dtype: str) -> tuple[relax.Expr, relax.Expr] | None:
    """Return the biases of both products, which ONNX has in one tensor; None where it is left out."""
    if (bias := node.operand(3)) is None:
        return None
    _require(node, bias, "B", (directions, 2 * gates))
    bias = _cast(node, bias, dtype)
    if (value := constant_value(bias)) is not None:
        return relax.const(value[:, :gates], dtype), relax.const(value[:, gates:], dtype)
    first, second = (node.emit(relax.op.strided_slice(bias, [1], [begin], [begin + gates])) for begin in (0, gates))
    return first, second


def _peepholes(node: Node, layer: Recurrence) -> relax.Expr | None:
    if not layer.peepholes:
        return None
    value = node.operand(7)
    _require(node, value, "P", (len(layer.reverse), 3 * layer.hidden))
    return _cast(node, value, layer.dtype)


def _cast(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    """Return a tensor in a type; a constant stays one."""
    if str(x.ty.dtype) == dtype:
        return x
    if (value := constant_value(x)) is not None:
        return relax.const(value.astype(dtype), dtype)
    return node.emit(relax.op.astype(x, dtype))
