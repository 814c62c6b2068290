"""Recurrent layers, and the formulas of their cells: the next state from the sums of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.functions import Float32

CHANNELS = 16
"""The multiple that the channels of a gate are filled up to with zeros, so that they are whole vectors on all CPUs."""

GATES = {"lstm": "iofc", "gru": "zrh", "rnn": "h"}
"""The gates of each kind of cell, in ONNX's order."""

Kind = Literal["lstm", "gru", "rnn"]

Buffers = Mapping[str, Any]
"""The buffers of a function of a layer, by the names of operands and results."""


class Activation(msgspec.Struct, frozen=True):
    """An activation of a gate or of the cell's state, by ONNX's name in lower case, with its two numbers."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


class Recurrence(msgspec.Struct, frozen=True):
    """A recurrent layer, without its batch, its number of steps and its weights."""

    kind: Kind
    hidden: int
    """The channels of the state."""
    reverse: tuple[bool, ...]
    """For each direction, whether it begins with the last step."""
    activations: tuple[tuple[Activation, ...], ...]
    """For each direction, the activations in ONNX's order: f, g and h of LSTM, f and g of GRU, f of RNN."""
    clip: float | None = None
    """The bound of the activations' operands, and of their negatives."""
    linear_before_reset: bool = False
    """True if GRU's reset gate is multiplied by the product of the state, instead of by the state."""
    input_forget: bool = False
    """True if LSTM's forget gate is 1 less the input gate."""
    peepholes: bool = False
    lengths: bool = False
    """True if each row of the batch has a number of steps that count."""
    quantized: bool = False
    """True if products of the state are those of integers: the state is rounded to 256 values between its bounds."""
    dtype: str = "float32"

    @property
    def gates(self) -> str:
        """The gates, a letter each, in the order of the weight's."""
        return GATES[self.kind]

    @property
    def channels(self) -> int:
        """The channels of a gate, filled up to a multiple of `CHANNELS`."""
        return -(-self.hidden // CHANNELS) * CHANNELS

    @property
    def phases(self) -> tuple[str, ...]:
        """The gates whose products are computed together, one after the other: those of GRU's state need the reset."""
        return ("zr", "h") if self.kind == "gru" and not self.linear_before_reset else (self.gates,)

    @property
    def state_buffers(self) -> tuple[str, ...]:
        """The names of the buffers for each channel of a state, beside the state itself."""
        return ("c",) if self.kind == "lstm" else ("reset", "update") if len(self.phases) > 1 else ()

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands, in order."""
        optional = {
            "c": self.kind == "lstm",
            "bias": self.linear_before_reset,
            "peepholes": self.peepholes,
            "scales": self.quantized,
            "lengths": self.lengths,
        }
        return ("gates", "weight", "h", *(name for name, is_there in optional.items() if is_there))

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the results, in order."""
        return ("y", "last_h", "last_c") if self.kind == "lstm" else ("y", "last_h")


@dataclass(frozen=True)
class Element:
    """An element of a buffer."""

    buffer: Any
    indices: Sequence[Expr | int]

    def load(self) -> Expr:
        return self.buffer[tuple(self.indices)]

    def store(self, value: Expr) -> tirx.Stmt:
        indices = [tirx.const(index, "int64") if isinstance(index, int) else index for index in self.indices]
        return tirx.BufferStore(self.buffer, value, indices)


@dataclass(frozen=True)
class Channel:
    """The elements of a channel and a row in a step, in buffers by the letters of gates and by names."""

    sums: Callable[[str], Element]
    """The sum of a gate: the product of the input plus that of the state, except for GRU's last gate with
    `linear_before_reset`."""
    gates: Callable[[str], Element]
    """The product of the input for a gate."""
    state: Element
    """The state before the step."""
    next_state: Element
    """The state after the step."""
    named: Callable[[str], Element]
    """The elements of the other buffers by name: "c", the reset state "reset", the update gate "update", and "bias"."""
    peepholes: Callable[[str], Element]
    counts: Expr | None
    """The condition that the step counts for the row; None where all do."""


def position_of(
    layer: Recurrence, buffers: Buffers, direction: Expr, step: Expr, row: Expr
) -> tuple[Expr, Expr | None]:
    """Return the position of a row's step in the input, and whether the step counts; None where all do.

    Steps that do not count follow the others in both directions.
    """
    end, counts = buffers["gates"].ty.shape[0], None
    if layer.lengths:
        end = tirx.min(buffers["lengths"][row].astype("int64"), end)
        counts = step < end
    if len(layer.reverse) > 1:
        position = tirx.Select(direction == 1, end - 1 - step, step)
    else:
        position = end - 1 - step if layer.reverse[0] else step
    return (position if counts is None else tirx.Select(counts, position, step)), counts


class Cell:
    """The statements that compute the next state of a channel from the sums of a phase."""

    def __init__(self, recurrence: Recurrence, direction: int) -> None:
        self._layer, self._activations = recurrence, recurrence.activations[direction]

    @classmethod
    def for_any_direction(cls, recurrence: Recurrence, direction: Expr, phase: str, at: Channel) -> tirx.Stmt:
        """Return the statements of `next_state` as one, for a direction that is known only when it runs."""
        numbers = range(len(set(recurrence.activations)))  # one for both directions if they have the same
        cells = [tirx.stmt_seq(*cls(recurrence, number).next_state(phase, at)) for number in numbers]
        return cells[0] if len(cells) == 1 else tirx.IfThenElse(direction == 0, *cells)

    def next_state(self, phase: str, at: Channel) -> list[tirx.Stmt]:
        """Return the statements that follow the sums of the gates of a phase."""
        if self._layer.kind == "lstm":
            return self._lstm(at)
        if self._layer.kind == "rnn":
            return [*self._activate(at, "h", 0), self._next(at, at.sums("h").load())]
        if phase == "zr":
            gates = [step for gate in phase for step in self._activate(at, gate, 0)]
            reset = at.named("reset").store(at.sums("r").load() * at.state.load())
            return [*gates, at.named("update").store(at.sums("z").load()), reset]
        return self._gru(phase, at)

    def _lstm(self, at: Channel) -> list[tirx.Stmt]:
        i, o, f, c = map(at.sums, "iofc")
        state = at.named("c")
        steps = [*self._activate(at, "i", 0, state), *self._activate(at, "c", 1)]
        steps += [f.store(1.0 - i.load())] if self._layer.input_forget else self._activate(at, "f", 0, state)
        steps.append(f.store(f.load() * state.load() + i.load() * c.load()))
        steps += self._activate(at, "o", 0, f)
        steps.append(state.store(self._if_counts(at, f.load(), state.load())))
        return [*steps, self._next(at, o.load() * self._activated(f.load(), 2))]  # ONNX Runtime does not clip it

    def _gru(self, phase: str, at: Channel) -> list[tirx.Stmt]:
        h, steps = at.sums("h"), list[tirx.Stmt]()
        if self._layer.linear_before_reset:
            steps = [step for gate in "zr" for step in self._activate(at, gate, 0)]
            steps.append(h.store(h.load() * at.sums("r").load() + at.gates("h").load()))
        update = at.sums("z") if "z" in phase else at.named("update")
        steps += self._activate(at, "h", 1)
        return [*steps, self._next(at, (1.0 - update.load()) * h.load() + update.load() * at.state.load())]

    def _next(self, at: Channel, value: Expr) -> tirx.Stmt:
        return at.next_state.store(self._if_counts(at, value, at.state.load()))

    def _if_counts(self, at: Channel, value: Expr, otherwise: Expr) -> Expr:
        return value if at.counts is None else tirx.Select(at.counts, value, otherwise)

    def _activate(self, at: Channel, gate: str, number: int, state: Element | None = None) -> list[tirx.Stmt]:
        """Return the statements that replace the sum of a gate by the gate; its peephole reads `state`.

        Each is short: the time of TVM's passes doubles with each variable in an expression.
        """
        total, steps = at.sums(gate), list[tirx.Stmt]()
        if state is not None and self._layer.peepholes:
            steps.append(total.store(total.load() + at.peepholes(gate).load() * state.load()))
        if (bound := self._layer.clip) is not None:
            steps.append(total.store(_arithmetic(self._layer).clip(total.load(), -bound, bound)))
        return [*steps, total.store(self._activated(total.load(), number))]

    def _activated(self, value: Expr, number: int) -> Expr:
        """Return the activation of a number, by its index in the order of the direction's activations."""
        of, row = _arithmetic(self._layer), self._activations[number]
        value = of.bound(value, self._layer.dtype)
        return of.with_variables(ACTIVATIONS[row.name](of, value, row.alpha, row.beta))


def _arithmetic(layer: Recurrence) -> Float32:
    return Float32() if layer.dtype == "float32" else _Float64()


class _Float64(Float32):
    """Arithmetic of float64 expressions, with functions of the C library."""

    def exp(self, y: Expr) -> Expr:
        return tirx.exp(y)

    def expm1(self, y: Expr) -> Expr:
        return tirx.exp(y) - 1.0

    def tanh(self, y: Expr) -> Expr:
        return tirx.tanh(y)

    def clip(self, y: Expr, low: float | None, high: float | None) -> Expr:
        if low is not None:
            y = tirx.Select(y < low, tirx.const(low, "float64"), y)
        return y if high is None else tirx.Select(y > high, tirx.const(high, "float64"), y)

    def where_negative(self, y: Expr, then: Expr, otherwise: Expr) -> Expr:
        return tirx.Select(y < 0.0, then, otherwise)


def _softplus(of: Float32, y: Expr, alpha: float, beta: float) -> Expr:
    return of.clip(y, 0.0, None) + tirx.log(of.exp(of.where_negative(y, y, -y)) + 1.0)


ACTIVATIONS: dict[str, Callable[[Float32, Expr, float, float], Expr]] = {
    "affine": lambda of, y, alpha, beta: y * alpha + beta,
    "elu": lambda of, y, alpha, beta: of.where_negative(y, of.expm1(of.clip(y, None, 0.0)) * alpha, y),
    "hardsigmoid": lambda of, y, alpha, beta: of.clip(y * alpha + beta, 0.0, 1.0),
    "leakyrelu": lambda of, y, alpha, beta: of.where_negative(y, y * alpha, y),
    "relu": lambda of, y, alpha, beta: of.clip(y, 0.0, None),
    "scaledtanh": lambda of, y, alpha, beta: of.tanh(y * beta) * alpha,
    "sigmoid": lambda of, y, alpha, beta: 1.0 / (of.exp(-y) + 1.0),
    "softplus": _softplus,
    "softsign": lambda of, y, alpha, beta: y / (of.where_negative(y, -y, y) + 1.0),
    "tanh": lambda of, y, alpha, beta: of.tanh(y),
    "thresholdedrelu": lambda of, y, alpha, beta: of.where_negative(alpha - y, y, tirx.const(0, y.ty.dtype)),
}
"""The activations of ONNX's recurrent layers, of a value and two numbers, by their names in lower case."""
