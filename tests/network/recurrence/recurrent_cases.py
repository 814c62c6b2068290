"""Recurrent layers of ONNX for tests: models with random numbers, and their results in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

Array = np.ndarray[Any, Any]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

ACTIVATIONS: Mapping[str, Callable[[Array, float, float], Array]] = {
    "Affine": lambda y, a, b: a * y + b,
    "Elu": lambda y, a, b: np.where(y < 0, a * np.expm1(y), y),
    "HardSigmoid": lambda y, a, b: np.clip(a * y + b, 0, 1),
    "LeakyRelu": lambda y, a, b: np.where(y < 0, a * y, y),
    "Relu": lambda y, a, b: np.maximum(y, 0),
    "ScaledTanh": lambda y, a, b: a * np.tanh(b * y),
    "Sigmoid": lambda y, a, b: 1 / (1 + np.exp(-y)),
    "Softplus": lambda y, a, b: np.log1p(np.exp(y)),
    "Softsign": lambda y, a, b: y / (1 + np.abs(y)),
    "Tanh": lambda y, a, b: np.tanh(y),
    "ThresholdedRelu": lambda y, a, b: np.where(y > a, y, 0),
}

DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@dataclass(frozen=True)
class Case:
    """A recurrent layer: its sizes, the operands that it has beside X, W and R, and attributes."""

    operator: str
    hidden: int = 20
    batch: int = 3
    steps: int = 6
    inputs: int = 5
    direction: str = "forward"
    operands: tuple[str, ...] = ("B",)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    numbers: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * 6
    """Alpha and beta of each activation."""

    def __str__(self) -> str:
        more = [*self.operands, *(f"{name}={value}" for name, value in self.attributes.items())]
        return "-".join(map(str, (self.operator, self.hidden, f"{self.batch}x{self.steps}", self.direction, *more)))

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def is_batch_first(self) -> bool:
        return bool(self.attributes.get("layout", 0))

    def tensors(self, seed: int = 0) -> dict[str, Array]:
        """Return random operands, steps first."""
        rng, count = np.random.default_rng(seed), GATES[self.operator] * self.hidden

        def numbers(*shape: int) -> Array:
            return rng.standard_normal(shape, dtype="float32") * np.float32(self.hidden**-0.5)

        state = (self.directions, self.batch, self.hidden)
        found = {
            "X": numbers(self.steps, self.batch, self.inputs) * 4,
            "W": numbers(self.directions, count, self.inputs),
            "R": numbers(self.directions, count, self.hidden),
            "B": numbers(self.directions, 2 * count),
            "sequence_lens": rng.integers(0, self.steps + 1, self.batch).astype("int32"),
            "initial_h": numbers(*state),
            "initial_c": numbers(*state),
            "P": numbers(self.directions, 3 * self.hidden),
        }
        return {name: value for name, value in found.items() if name in ("X", "W", "R", *self.operands)}

    def model(self, tensors: Mapping[str, Array], opset: int = 14, sizes: tuple[Any, Any] | None = None) -> Any:
        """Return the model, with other sizes than the case's for steps and batch; weights are constants."""
        order = (
            "X",
            "W",
            "R",
            "B",
            "sequence_lens",
            "initial_h",
            *(("initial_c", "P") if self.operator == "LSTM" else ()),
        )
        given = [name if name in tensors else "" for name in order]
        results = ["Y", "Y_h", "Y_c"][: 3 if self.operator == "LSTM" else 2]
        steps, batch = sizes or (self.steps, self.batch)
        shapes = {
            "X": [batch, steps, self.inputs] if self.is_batch_first else [steps, batch, self.inputs],
            "sequence_lens": [batch],
            "initial_h": [batch, self.directions, self.hidden]
            if self.is_batch_first
            else [self.directions, batch, self.hidden],
        }
        shapes["initial_c"] = shapes["initial_h"]
        elements = helper.np_dtype_to_tensor_dtype
        names = {"direction": self.direction} if self.direction != "forward" else {}
        graph = helper.make_graph(
            [
                helper.make_node(
                    self.operator, given, results, "layer", hidden_size=self.hidden, **names, **self.attributes
                )
            ],
            "recurrent",
            [
                helper.make_tensor_value_info(name, elements(tensors[name].dtype), shape)
                for name, shape in shapes.items()
                if name in tensors
            ],
            [helper.make_tensor_value_info(name, elements(tensors["X"].dtype), None) for name in results],
            [onnx.numpy_helper.from_array(tensors[name], name) for name in tensors if name not in shapes],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def feeds(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of the model."""
        moved = {"X", "initial_h", "initial_c"} if self.is_batch_first else set()
        names = [name for name in ("X", "sequence_lens", "initial_h", "initial_c") if name in tensors]
        return {name: tensors[name].swapaxes(0, 1).copy() if name in moved else tensors[name] for name in names}

    def expected(self, tensors: Mapping[str, Array]) -> list[Array]:
        """Return Y, Y_h and, for LSTM, Y_c in float64, as the model has them."""
        each = [self._direction(tensors, number) for number in range(self.directions)]
        y, *last = (np.stack(parts) for parts in zip(*each, strict=True))
        y = y.swapaxes(0, 1)
        return [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last)] if self.is_batch_first else [y, *last]

    def _direction(self, tensors: Mapping[str, Array], number: int) -> list[Array]:
        wide = {name: value.astype("float64") for name, value in tensors.items()}
        steps, batch, _ = wide["X"].shape
        count, zeros = GATES[self.operator] * self.hidden, np.zeros((2, batch, self.hidden))
        bias = wide["B"][number] if "B" in wide else np.zeros(2 * count)
        w, r, of_input, of_state = wide["W"][number].T, wide["R"][number].T, bias[:count], bias[count:]
        peepholes = np.split(wide["P"][number] if "P" in wide else np.zeros(3 * self.hidden), 3)
        h, c = (wide.get(name, zeros)[number].copy() for name in ("initial_h", "initial_c"))
        lengths = tensors.get("sequence_lens", np.full(batch, steps))
        y, backward = np.zeros((steps, batch, self.hidden)), self.direction == "reverse" or number == 1
        for step in range(steps):
            for row in range(batch):
                if step >= lengths[row]:
                    continue
                at = lengths[row] - 1 - step if backward else step
                x = wide["X"][at, row] @ w + of_input
                h[row], c[row] = self._cell(number, x, h[row], c[row], r, of_state, peepholes)
                y[at, row] = h[row]
        return [y, h, c] if self.operator == "LSTM" else [y, h]

    def _cell(
        self, number: int, x: Array, h: Array, c: Array, r: Array, bias: Array, peepholes: list[Array]
    ) -> tuple[Array, Array]:
        clip, size = self.attributes.get("clip", np.inf), self.hidden

        def f(value: Array, index: int, clipped: bool = True) -> Array:
            count = len(DEFAULTS[self.operator])
            at = number * count + index
            name = self.attributes.get("activations", DEFAULTS[self.operator] * 2)[at]
            return ACTIVATIONS[name](np.clip(value, -clip, clip) if clipped else value, *self.numbers[at])

        if self.operator == "RNN":
            return f(x + h @ r + bias, 0), c
        if self.operator == "GRU":
            z, reset = np.split(f(x[: 2 * size] + h @ r[:, : 2 * size] + bias[: 2 * size], 0), 2)
            if self.attributes.get("linear_before_reset", 0):
                new = reset * (h @ r[:, 2 * size :] + bias[2 * size :])
            else:
                new = (reset * h) @ r[:, 2 * size :] + bias[2 * size :]
            return (1 - z) * f(x[2 * size :] + new, 1) + z * h, c
        i, o, forget, new = np.split(x + h @ r + bias, 4)
        i = f(i + peepholes[0] * c, 0)
        forget = 1 - i if self.attributes.get("input_forget", 0) else f(forget + peepholes[2] * c, 0)
        c = forget * c + i * f(new, 1)
        return f(o + peepholes[1] * c, 0) * f(c, 2, clipped=False), c


EVERY = ("B", "sequence_lens", "initial_h", "initial_c", "P")

OTHERS = ("B", "sequence_lens", "initial_h")

ALPHAS = {
    "Affine": (0.4, 0.1),
    "Elu": (0.7, 0.0),
    "LeakyRelu": (0.2, 0.0),
    "ScaledTanh": (0.8, 1.2),
    "ThresholdedRelu": (0.1, 0.0),
    "HardSigmoid": (0.3, 0.4),
}


def _activated(operator: str, *names: str) -> Case:
    """Return a case with these activations, of which those that take numbers get the row's of `ALPHAS`."""
    taken = [ALPHAS[name] for name in names if name in ALPHAS]
    betas = [ALPHAS[name][1] for name in names if name in ("Affine", "HardSigmoid", "ScaledTanh")]
    attributes = {"activations": names, "activation_alpha": [a for a, _ in taken], "activation_beta": betas}
    attributes = {name: value for name, value in attributes.items() if value}
    direction = "bidirectional" if len(names) > len(DEFAULTS[operator]) else "forward"
    numbers = tuple(ALPHAS.get(name, (0.0, 0.0)) for name in names)
    return Case(operator, direction=direction, attributes=attributes, numbers=numbers)


CASES = (
    Case("LSTM", 8, 1, operands=()),
    Case("LSTM", direction="bidirectional", operands=EVERY),
    Case("LSTM", direction="reverse", operands=EVERY, attributes={"clip": 0.5, "input_forget": 1}),
    Case("LSTM", 33, 1, direction="bidirectional", attributes={"layout": 1}),
    Case("LSTM", 144, 13, 3),
    Case("GRU", 16, 7, direction="bidirectional", operands=OTHERS),
    Case("GRU", 33, direction="reverse", operands=OTHERS, attributes={"clip": 0.5}),
    Case("GRU", direction="bidirectional", operands=OTHERS, attributes={"linear_before_reset": 1}),
    Case("GRU", 160, 14, 3, attributes={"linear_before_reset": 1, "layout": 1}),
    Case("GRU", 160, 15, 3),
    Case("RNN", direction="bidirectional", operands=OTHERS),
    Case("RNN", 256, 16, 3, direction="reverse"),
    _activated("LSTM", "HardSigmoid", "Softsign", "Affine", "Sigmoid", "ScaledTanh", "Elu"),
    _activated("GRU", "Sigmoid", "LeakyRelu", "HardSigmoid", "ThresholdedRelu"),
    _activated("RNN", "Softplus", "Relu"),
)
