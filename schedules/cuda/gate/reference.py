"""The float64 reference of a gate, with the errors that float32 sums and activations may have."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tvmconv.compute import conv2d_reference
from tvmconv.compute.functions import Float64
from tvmconv.compute.fused import DEVIATIONS, Reference, Sample
from tvmconv.problem import FusedProblem
from tvmconv.problem.dtypes import FLOAT32_UNIT, NARROW, STORAGE_TYPES
from tvmconv.problem.fused import Gate
from tvmconv.problem.workload import ConvWorkload


def gate_reference(
    problem: FusedProblem, operands: Mapping[str, np.ndarray], rng: np.random.Generator, outputs: int
) -> Reference:
    """Return all results; the second layer's weight multiplies the errors of the first layer."""
    gate = problem.workload
    assert isinstance(gate, Gate)
    magnitudes = {name: np.abs(each) for name, each in operands.items()}
    plain = gate.with_layers(_without_activation)
    hidden, expected = _computed(gate, operands)
    sums, _ = _computed(plain, magnitudes)
    _, before = _computed(Gate(gate.first, plain.second), operands)
    steepest = gate.first.epilogue.row.steepest(*gate.first.epilogue.parameters)
    weight = magnitudes["v"].astype(np.float64)
    error = steepest * (gate.first.terms + 4) * FLOAT32_UNIT * sums @ weight
    error += DEVIATIONS * np.sqrt(_evaluation(gate, gate.first, hidden) ** 2 @ weight**2)
    error += (gate.second.terms + 4) * FLOAT32_UNIT * (np.abs(hidden) @ weight + magnitudes.get("c", 0))
    ends = (np.abs(_activated(gate.second, before + each) - expected) for each in (-error, error))
    error = np.maximum(*ends) + _evaluation(gate, gate.second, expected)
    indices = np.arange(expected.size).reshape(expected.shape)
    return Reference(indices, [Sample(indices, expected, error, np.zeros_like(expected), 0)])


def _computed(gate: Gate, operands: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of the first layer, (N, S), and the output (N, K)."""
    first, second = gate.first, gate.second
    w, v = operands["w"].reshape(first.w_shape), operands["v"].T.reshape(second.w_shape)
    hidden = conv2d_reference(first, operands["x"], w, shift=operands.get("b"))
    output = conv2d_reference(second, hidden, v, shift=operands.get("c"))
    return hidden[:, :, 0, 0], output[:, :, 0, 0]


def _without_activation(layer: ConvWorkload) -> ConvWorkload:
    return msgspec.structs.replace(layer, epilogue=layer.epilogue.without_activation())


def _activated(layer: ConvWorkload, sums: np.ndarray) -> np.ndarray:
    """Return a layer's activation of its sums, in float64."""
    return np.asarray(layer.epilogue.activate(Float64(), sums))


def _evaluation(gate: Gate, layer: ConvWorkload, results: np.ndarray) -> np.ndarray:
    """Return the error of a layer's activation, which is approximate where outputs are stored in half precision."""
    approximate = STORAGE_TYPES["float16"].unit if gate.second.output_storage.name in NARROW else 0.0
    unit = (layer.epilogue.row.roundings + 1) * FLOAT32_UNIT + approximate
    return np.asarray(unit * np.maximum(np.abs(results), 1))
