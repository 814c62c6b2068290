"""The float64 references of attention and gates, for any results that kernels of them should give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tvmconv.problem.attention import Attention
from tvmconv.problem.gate import Gate

from .reference import conv2d_reference


class Weighed(NamedTuple):
    """Rows of attention for some queries of one matrix, in float64."""

    q: np.ndarray
    """The queries (Q, depth)."""
    k: np.ndarray
    """The keys (K, depth)."""
    v: np.ndarray
    """The values (K, width)."""
    scores: np.ndarray
    """The scores (Q, K), scaled, with what is added to them."""
    shares: np.ndarray
    """The softmax of the scores; zeros in a row of -inf if the attention is safe, else NaN."""

    @property
    def result(self) -> np.ndarray:
        """The results (Q, width)."""
        return np.asarray(self.shares @ self.v)


def attention_reference(
    attention: Attention, operands: Mapping[str, np.ndarray], matrix: int, queries: np.ndarray
) -> Weighed:
    """Return attention of some queries of a matrix, given operands by name as they lie in memory."""

    def rows(name: str, numbers: np.ndarray, columns: int) -> np.ndarray:
        at = attention.places[name].at(matrix, numbers[:, None], np.arange(columns))
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


def gate_reference(gate: Gate, operands: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return what the first layer computes (N, S, 1, 1) and the output (N, K, 1, 1), given operands by name."""
    first, second = gate.first, gate.second
    w, v = operands["w"].reshape(first.w_shape), operands["v"].T.reshape(second.w_shape)
    hidden = conv2d_reference(first, operands["x"], w, shift=operands.get("b"))
    return hidden, conv2d_reference(second, hidden, v, shift=operands.get("c"))
