"""The check of results of attention and gates."""

from __future__ import annotations

import msgspec
import numpy as np

from tvmconv.compute.functions import Float64
from tvmconv.compute.reference import Weighed, attention_reference, gate_reference
from tvmconv.problem import FusedProblem
from tvmconv.problem.attention import Attention
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.problem.gate import Gate
from tvmconv.problem.workload import ConvWorkload

from .closeness import FLOAT32_UNIT, assert_close

LEAST_QUERIES = 16
"""The number of queries of a sample, at least."""

DEVIATIONS = 5.0
"""The largest error of a sum whose terms have independent ones, as a multiple of its root mean square."""


class FusedSample:
    """The expected result of attention or a gate of finite operands: of attention for some queries, or for all."""

    def __init__(
        self, problem: FusedProblem, operands: dict[str, np.ndarray], rng: np.random.Generator, outputs: int
    ) -> None:
        self._problem, self._operands = problem, operands
        self._rng, self._outputs = rng, outputs

    def check(self, got: np.ndarray) -> None:
        """Assert that `got` is right in the sample, and written where it should be: it was filled with NaN."""
        workload = self._problem.workload
        shape, dtype = workload.operands["output"]
        if (got.shape, str(got.dtype)) != (shape, dtype):
            raise AssertionError(f"{got.shape} {got.dtype}, expected {shape} {dtype}")
        if isinstance(workload, Gate):
            self._check_gate(workload, got)
        else:
            self._check_attention(workload, got)

    def _check_attention(self, attention: Attention, got: np.ndarray) -> None:
        every = np.arange(attention.matrices)[:, None, None], np.arange(attention.queries)[:, None]
        written = np.zeros(got.size, bool)
        written[attention.output.at(*every, np.arange(attention.width))] = True
        if (count := int((np.isnan(got) & written).sum())) or not np.isnan(got[~written]).all():
            raise AssertionError(f"{count} of {written.sum()} elements are not written, or others are")
        total = attention.matrices * attention.queries
        count = max(LEAST_QUERIES, self._outputs // attention.width)
        chosen = np.arange(total)
        if total > count:
            chosen = np.unique([0, total - 1, *self._rng.choice(total, count - 2, replace=False)])
        matrices, queries = np.divmod(chosen, attention.queries)
        for matrix in np.unique(matrices):
            rows = queries[matrices == matrix]
            found = attention_reference(attention, self._operands, int(matrix), rows)
            at = attention.output.at(int(matrix), rows[:, None], np.arange(attention.width))
            error, magnitude = self._attention_error(attention, found)
            assert_close(got[at], found.result, magnitude, attention.keys, evaluation=error)

    def _attention_error(self, attention: Attention, found: Weighed) -> tuple[np.ndarray, np.ndarray]:
        """Return the error that results may have beside their sums' roundings, and the sums of absolute products.

        A score that is wrong by d makes its power wrong by d of itself, and so the sum that all are divided by.
        """
        q, k, v = (np.abs(each) for each in (found.q, found.k, found.v))
        factors = self._unit_of_factors(attention)
        scores = DEVIATIONS * 2 * factors * np.sqrt(q**2 @ k.T**2) + (attention.depth + 4) * FLOAT32_UNIT * (q @ k.T)
        with np.errstate(invalid="ignore"):
            wrong = abs(attention.scale) * scores + 8 * FLOAT32_UNIT * (1 + np.abs(found.scores))
            wrong = np.where(found.shares > 0, found.shares * wrong, 0)
        magnitude = found.shares @ v
        narrow = STORAGE_TYPES[attention.dtype].unit if attention.dtype in NARROW else factors
        return wrong @ v + wrong.sum(-1, keepdims=True) * magnitude + 2 * narrow * magnitude, magnitude

    def _unit_of_factors(self, attention: Attention) -> float:
        """Return the share of a float32 factor that may be lost before it is multiplied; none of one in half."""
        promise = self._problem.promise
        return 0.0 if attention.dtype in NARROW else max(promise.operand_unit, promise.product_unit)

    def _check_gate(self, gate: Gate, got: np.ndarray) -> None:
        """Check all results; the second layer's weight passes on what the first one may have wrong."""
        operands, magnitudes = self._operands, {name: np.abs(each) for name, each in self._operands.items()}
        plain = Gate(*(_without_activation(each) for each in (gate.first, gate.second)))
        hidden, expected = (each[:, :, 0, 0] for each in gate_reference(gate, operands))
        sums = gate_reference(plain, magnitudes)[0][:, :, 0, 0]
        before = gate_reference(Gate(gate.first, plain.second), operands)[1][:, :, 0, 0]
        steepest = gate.first.epilogue.row.steepest(*gate.first.epilogue.parameters)
        weight = magnitudes["v"].astype(np.float64)
        error = steepest * (gate.first.terms + 4) * FLOAT32_UNIT * sums @ weight
        error += DEVIATIONS * np.sqrt(_evaluation(gate, gate.first, hidden) ** 2 @ weight**2)
        error += (gate.second.terms + 4) * FLOAT32_UNIT * (np.abs(hidden) @ weight + magnitudes.get("c", 0))
        ends = (np.abs(_activated(gate.second, before + each) - expected) for each in (-error, error))
        evaluation = np.maximum(*ends) + _evaluation(gate, gate.second, expected)
        assert_close(got[:, :, 0, 0], expected, np.zeros_like(expected), 0, evaluation=evaluation)


def _without_activation(layer: ConvWorkload) -> ConvWorkload:
    return msgspec.structs.replace(layer, epilogue=layer.epilogue.without_activation())


def _activated(layer: ConvWorkload, sums: np.ndarray) -> np.ndarray:
    """Return a layer's activation of its sums, in float64."""
    return np.asarray(layer.epilogue.row.definition(Float64(), sums, *layer.epilogue.parameters))


def _evaluation(gate: Gate, layer: ConvWorkload, results: np.ndarray) -> np.ndarray:
    """Return the error of a layer's activation, which is approximate where outputs are stored in half precision."""
    approximate = STORAGE_TYPES["float16"].unit if gate.second.output_storage.name in NARROW else 0.0
    unit = (layer.epilogue.row.roundings + 1) * FLOAT32_UNIT + approximate
    return np.asarray(unit * np.maximum(np.abs(results), 1))
