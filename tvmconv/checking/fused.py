"""The check of results of several layers in one kernel, by the reference that their template names."""

from __future__ import annotations

import numpy as np

from tvmconv.dispatch.registry import fused_row
from tvmconv.problem import FusedProblem

from .closeness import assert_close


class FusedSample:
    """The expected result of several layers for finite operands, in some elements or in all, as their kind chooses."""

    def __init__(
        self, problem: FusedProblem, operands: dict[str, np.ndarray], rng: np.random.Generator, outputs: int
    ) -> None:
        self._operand = problem.workload.operands["output"]
        self._reference = fused_row(problem.workload).reference(problem, operands, rng, outputs)

    def check(self, got: np.ndarray) -> None:
        """Assert that `got`, filled with NaN before, is right in the sample, and written exactly where it should be."""
        shape, dtype = self._operand
        if (got.shape, str(got.dtype)) != (shape, dtype):
            raise AssertionError(f"{got.shape} {got.dtype}, expected {shape} {dtype}")
        flat, stored = got.reshape(-1), np.zeros(got.size, bool)
        stored[self._reference.stored] = True
        if (count := int((np.isnan(flat) & stored).sum())) or not np.isnan(flat[~stored]).all():
            raise AssertionError(f"{count} of {stored.sum()} elements are not written, or others are")
        for sample in self._reference.samples:
            assert_close(flat[sample.indices], sample.result, sample.magnitude, sample.terms, evaluation=sample.error)
