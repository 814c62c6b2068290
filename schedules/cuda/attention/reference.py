"""The float64 reference of attention, for some queries or all, with the errors that products on tensor cores may have.

A score with an error of d gives its power a relative error of d, and so the sum that all powers are divided by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tvmconv.compute.fused import DEVIATIONS, Reference, Sample
from tvmconv.problem import FusedProblem
from tvmconv.problem.dtypes import FLOAT32_UNIT, NARROW, STORAGE_TYPES
from tvmconv.problem.fused import Attention

from .tiles import attention_of

LEAST_QUERIES = 16
"""The least number of queries in a sample."""


class Weighed(NamedTuple):
    """Rows of attention for some queries of one matrix, in float64."""

    q: np.ndarray
    """The queries (Q, depth)."""
    k: np.ndarray
    """The keys (K, depth)."""
    v: np.ndarray
    """The values (K, width)."""
    scores: np.ndarray
    """The scores (Q, K), scaled, with the biases added."""
    shares: np.ndarray
    """The softmax of the scores; zeros in a row of -inf if the attention is safe, else NaN."""


def attention_reference(
    problem: FusedProblem, operands: Mapping[str, np.ndarray], rng: np.random.Generator, outputs: int
) -> Reference:
    """Return the results of random queries, the first and the last one among them, a matrix at a time."""
    attention = attention_of(problem)
    every = np.arange(attention.matrices)[:, None, None], np.arange(attention.queries)[:, None]
    stored = attention.output.at(*every, np.arange(attention.width))
    total, count = attention.matrices * attention.queries, max(LEAST_QUERIES, outputs // attention.width)
    chosen = np.arange(total)
    if total > count:
        chosen = np.unique([0, total - 1, *rng.choice(total, count - 2, replace=False)])
    return Reference(stored, [*_samples(problem, operands, *np.divmod(chosen, attention.queries))])


def _samples(
    problem: FusedProblem, operands: Mapping[str, np.ndarray], matrices: np.ndarray, queries: np.ndarray
) -> Iterator[Sample]:
    """Yield the results of pairs of a matrix and a query, one matrix at a time."""
    attention = attention_of(problem)
    for matrix in np.unique(matrices):
        rows = queries[matrices == matrix]
        weighed = _weighed(attention, operands, int(matrix), rows)
        indices = attention.output.at(int(matrix), rows[:, None], np.arange(attention.width))
        error, magnitude = _errors(problem, weighed)
        yield Sample(indices, weighed.shares @ weighed.v, error, magnitude, attention.keys)


def _weighed(attention: Attention, operands: Mapping[str, np.ndarray], matrix: int, queries: np.ndarray) -> Weighed:
    """Return the attention of some queries of a matrix."""

    def rows(name: str, numbers: np.ndarray, columns: int) -> np.ndarray:
        at = attention.strided_rows[name].at(matrix, numbers[:, None], np.arange(columns))
        return np.asarray(operands[name].reshape(-1)[at], np.float64)

    keys = np.arange(attention.keys)
    q, k = rows("q", queries, attention.depth), rows("k", keys, attention.depth)
    scores = q @ k.T * attention.scale
    for number in range(len(attention.biases)):
        scores = scores + rows(f"bias_{number}", queries, attention.keys)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        shares = powers / powers.sum(-1, keepdims=True)
    if attention.safe:
        shares = np.where(np.isneginf(scores).all(-1, keepdims=True), 0, shares)
    return Weighed(q, k, rows("v", keys, attention.width), scores, shares)


def _errors(problem: FusedProblem, weighed: Weighed) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors that results may have beyond their sums' roundings, and the sums of absolute products."""
    attention, promise = attention_of(problem), problem.promise
    q, k, v = (np.abs(each) for each in (weighed.q, weighed.k, weighed.v))
    is_narrow = attention.dtype in NARROW
    # The share of a float32 factor that may be lost before it is multiplied; none of one in half precision.
    factors = 0.0 if is_narrow else max(promise.operand_unit, promise.product_unit)
    scores = DEVIATIONS * 2 * factors * np.sqrt(q**2 @ k.T**2) + (attention.depth + 4) * FLOAT32_UNIT * (q @ k.T)
    with np.errstate(invalid="ignore"):
        wrong = abs(attention.scale) * scores + 8 * FLOAT32_UNIT * (1 + np.abs(weighed.scores))
        wrong = np.where(weighed.shares > 0, weighed.shares * wrong, 0)
    magnitude = weighed.shares @ v
    unit = STORAGE_TYPES[attention.dtype].unit if is_narrow else factors
    return wrong @ v + wrong.sum(-1, keepdims=True) * magnitude + 2 * unit * magnitude, magnitude
