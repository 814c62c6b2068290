"""Recurrent layers of importers: the products of the input as a linear layer, and the operator of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..graph.constants import constant_value
from . import recurrence
from .cells import Recurrence


@dataclass(frozen=True)
class Numbers:
    """The numbers of a recurrent layer, in its dtype; gates are in ONNX's order."""

    w: relax.Expr
    """The weight of the input (directions, gates * hidden, inputs)."""
    r: relax.Expr
    """The weight of the state (directions, gates * hidden, hidden)."""
    biases: tuple[relax.Expr, relax.Expr] | None = None
    """The biases of both products (directions, gates * hidden)."""
    peepholes: relax.Expr | None = None
    """The weights (directions, 3 * hidden) of the cell's state, for the gates "iof"."""
    scales: tuple[relax.Expr, relax.Expr] | None = None
    """The scales (directions, gates * hidden) of both products, of integers."""


@dataclass(frozen=True)
class States:
    """The first states of a call of a recurrent layer, and the steps that count."""

    h: relax.Expr | None = None
    """The first state (directions, batch, hidden); None for zeros."""
    c: relax.Expr | None = None
    """The first state (directions, batch, hidden) of the cell; None for zeros."""
    lengths: relax.Expr | None = None
    """The number of steps of each row (batch,) that count, in int32; None for all."""


def recurrent_layer(
    builder: relax.BlockBuilder, layer: Recurrence, x: relax.Expr, numbers: Numbers, states: States
) -> list[relax.Expr]:
    """Return the results of a layer for x (steps, batch, inputs): y (steps, directions, batch, hidden) and last states.

    The last states are those of h and, for LSTM, of c, (directions, batch, hidden).
    """
    return _Builder(builder, layer).results(x, numbers, states)


class _Builder:
    def __init__(self, builder: relax.BlockBuilder, layer: Recurrence) -> None:
        self._builder, self._layer = builder, layer
        self._directions, self._gates = len(layer.reverse), len(layer.gates)

    def results(self, x: relax.Expr, numbers: Numbers, states: States) -> list[relax.Expr]:
        layer, emit = self._layer, self._builder.emit
        _, batch, inputs = x.ty.shape
        columns = self._directions * self._gates * layer.channels
        w = self._padded_by_gate(numbers.w, self._gates, inputs)
        w = emit(relax.op.permute_dims(emit(relax.op.reshape(w, (columns, inputs)))))
        r = self._padded_by_gate(numbers.r, self._gates, layer.hidden)
        operands = {"weight": emit(relax.op.permute_dims(r, (0, 3, 1, 2)))}
        gates = self._product_of_integers(x, w, numbers) if numbers.scales else emit(relax.op.matmul(x, w))
        if numbers.biases is not None:
            of_input, of_state = (self._padded_by_gate(each, self._gates) for each in numbers.biases)
            if layer.linear_before_reset:
                operands["bias"], of_state = self._split_bias(of_state)
            total = emit(relax.op.add(of_input, of_state))
            gates = emit(relax.op.add(gates, emit(relax.op.reshape(total, (columns,)))))
        elif layer.linear_before_reset:
            operands["bias"] = relax.const(np.zeros((self._directions, layer.channels)), layer.dtype)
        if numbers.peepholes is not None:
            operands["peepholes"] = self._padded_by_gate(numbers.peepholes, 3)
        if numbers.scales is not None:
            operands["scales"] = self._padded_by_gate(numbers.scales[1], self._gates)
        if states.lengths is not None:
            operands["lengths"] = states.lengths
        for name, state in (("h", states.h), ("c", states.c)):
            if state is None:
                state = emit(relax.op.zeros((self._directions, batch, layer.hidden), layer.dtype))
            operands[name] = state
        every = emit(recurrence(layer, {**operands, "gates": gates}))
        return [emit(relax.TupleGetItem(every, index)) for index in range(len(layer.results))]

    def _padded_by_gate(self, value: relax.Expr, gates: int, *trailing: Any) -> relax.Expr:
        """Return numbers (directions, gates * hidden, ...) as (directions, gates, channels, ...), filled with zeros."""
        layer, more = self._layer, self._layer.channels - self._layer.hidden
        shape = (self._directions, gates, layer.hidden, *trailing)
        widths = [(0, 0), (0, 0), (0, more), *[(0, 0)] * len(trailing)]
        if (constant := constant_value(value)) is not None:
            return relax.const(np.pad(constant.reshape([int(size) for size in shape]), widths), str(value.ty.dtype))
        value = self._builder.emit(relax.op.reshape(value, shape))
        flat = [width for pair in widths for width in pair]
        return self._builder.emit(relax.op.nn.pad(value, flat)) if more else value

    def _split_bias(self, bias: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """Return the part of GRU's bias (directions, gates, channels) for the last gate, and the rest of it."""
        emit = self._builder.emit
        is_last = np.zeros((1, self._gates, 1))
        is_last[:, -1] = 1
        rest = emit(relax.op.multiply(bias, relax.const(1 - is_last, self._layer.dtype)))
        last = emit(relax.op.sum(emit(relax.op.multiply(bias, relax.const(is_last, self._layer.dtype))), [1]))
        return last, rest

    def _product_of_integers(self, x: relax.Expr, w: relax.Expr, numbers: Numbers) -> relax.Expr:
        """Return the product of a weight of integers and of x, rounded to 256 values between its bounds.

        The values are those of ONNX's DynamicQuantizeLinear. Float32 holds the integers exactly, and sums up to 2**24.
        """
        emit, dtype = self._builder.emit, self._layer.dtype
        zero, largest = relax.const(0, dtype), relax.const(255, dtype)
        low = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
        high = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
        unit = emit(relax.op.divide(emit(relax.op.subtract(high, low)), largest))
        unit = emit(relax.op.where(emit(relax.op.equal(low, high)), relax.const(1, dtype), unit))
        lowest = emit(relax.op.round(emit(relax.op.divide(low, unit))))
        point = emit(relax.op.minimum(emit(relax.op.negative(lowest)), largest))
        rounded = emit(relax.op.round(emit(relax.op.divide(x, unit))))
        rounded = emit(relax.op.minimum(rounded, emit(relax.op.subtract(largest, point))))
        rounded = emit(relax.op.maximum(rounded, emit(relax.op.negative(point))))
        product = emit(relax.op.matmul(rounded, w))
        assert numbers.scales is not None
        scales = emit(relax.op.reshape(self._padded_by_gate(numbers.scales[0], self._gates), (-1,)))
        return emit(relax.op.multiply(product, emit(relax.op.multiply(scales, unit))))
