"""torch's LSTM, GRU and RNN of several layers, each with the operator of a recurrent layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tvm import relax

from ...graph.constants import Array
from ...recurrence.cells import GATES, Activation, Kind, Recurrence
from ...recurrence.layers import Numbers, States, recurrent_layer
from ..builder import ImportBuilder
from .types import base_name

OPERATORS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "lstm": ("lstm", ("sigmoid", "tanh", "tanh")),
    "gru": ("gru", ("sigmoid", "tanh")),
    "rnn_relu": ("rnn", ("relu",)),
    "rnn_tanh": ("rnn", ("tanh",)),
}
"""The kinds of torch's operators and their activations."""

ORDERS: dict[Kind, str] = {"lstm": "ifco", "gru": "rzh", "rnn": "h"}
"""The gates in torch's order, by ONNX's letters."""

REDUCED = ("bfloat16", "float16")


@dataclass(frozen=True)
class _Layers:
    """The arguments of an operator: x, the first states, the weights of all layers, and how these are to be read."""

    x: relax.Expr
    states: Sequence[relax.Expr]
    weights: Sequence[Array]
    has_biases: bool
    layers: int
    directions: int
    batch_first: bool


def convert(
    builder: ImportBuilder,
    node: torch.fx.Node,
    env: Mapping[torch.fx.Node, relax.Expr],
    parameter: Callable[[torch.fx.Node], Array | None],
) -> relax.Expr:
    """Return the results of an operator for a sequence: the output, and the last states of all layers.

    `env` has the values of nodes, `parameter` returns the array of a parameter of the module and None for other nodes.
    """
    x, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first = node.args
    if train and dropout:
        raise ValueError("it is random, as in training")
    states = [env[each] for each in hx] if isinstance(hx, (list, tuple)) else [env[hx]]
    kind, activations = OPERATORS[base_name(node)]
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(weights) != layers * directions * each:
        raise ValueError("it has a projection (proj_size), which tvmconv does not support")
    arrays = [array for weight in weights if (array := parameter(weight)) is not None]
    if len(arrays) < len(weights):
        raise ValueError("its weights are known only when the model runs; make them parameters of the module")
    given = _Layers(env[x], states, arrays, has_biases, layers, directions, batch_first)
    return _Converter(builder, kind, activations, given).results()


class _Converter:
    def __init__(self, builder: ImportBuilder, kind: Kind, activations: Sequence[str], given: _Layers) -> None:
        self._builder, self._given = builder, given
        hidden = int(given.states[0].ty.shape[2])
        dtype = str(given.x.ty.dtype)
        named = tuple(Activation(name) for name in activations)
        reverse = (False, True)[: given.directions]
        self._layer = Recurrence(
            kind,
            hidden,
            reverse,
            (named,) * given.directions,
            linear_before_reset=kind == "gru",
            dtype="float32" if dtype in REDUCED else dtype,
        )

    def results(self) -> relax.Expr:
        """Return the tuple of the output and the last states."""
        emit, given, hidden = self._builder.emit, self._given, self._layer.hidden
        x = self._builder.cast(given.x, self._layer.dtype)
        if given.batch_first:
            x = emit(relax.op.permute_dims(x, (1, 0, 2)))
        steps, batch, _ = x.ty.shape
        last: list[list[relax.Expr]] = [[] for _ in given.states]
        for number in range(given.layers):
            y, *ends = recurrent_layer(self._builder, self._layer, x, self._numbers(number), self._first(number))
            for states, end in zip(last, ends, strict=True):
                states.append(end)
            if given.directions > 1:
                y = emit(relax.op.permute_dims(y, (0, 2, 1, 3)))
            x = emit(relax.op.reshape(y, (steps, batch, given.directions * hidden)))
        if given.batch_first:
            x = emit(relax.op.permute_dims(x, (1, 0, 2)))
        joined = [emit(relax.op.concat(states, axis=0)) if len(states) > 1 else states[0] for states in last]
        return relax.Tuple([self._builder.cast(each, str(given.x.ty.dtype)) for each in (x, *joined)])

    def _first(self, number: int) -> States:
        """Return the first states of a layer."""
        directions = self._given.directions
        begin, end = number * directions, (number + 1) * directions
        parts = [
            state if self._given.layers == 1 else self._builder.emit(relax.op.strided_slice(state, [0], [begin], [end]))
            for state in self._given.states
        ]
        return States(*(self._builder.cast(part, self._layer.dtype) for part in parts))

    def _numbers(self, number: int) -> Numbers:
        """Return the numbers of a layer."""
        given, each = self._given, 4 if self._given.has_biases else 2
        begin = number * given.directions * each
        weights = given.weights[begin : begin + given.directions * each]
        w, r, *biases = (self._of_directions(weights[index::each]) for index in range(each))
        return Numbers(w, r, (biases[0], biases[1]) if biases else None)

    def _of_directions(self, weights: Sequence[Array]) -> relax.Expr:
        """Return weights of directions (gates * hidden, ...) as one, with gates in ONNX's order."""
        order, ordered = ORDERS[self._layer.kind], []
        for weight in weights:
            parts = np.split(weight.astype(self._layer.dtype), len(order))
            ordered.append(np.concatenate([parts[order.index(gate)] for gate in GATES[self._layer.kind]]))
        return relax.const(np.stack(ordered), self._layer.dtype)
