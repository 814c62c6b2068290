"""Comparison of a result with its float64 reference, by bounds that follow from the arithmetic.

The checks raise AssertionError themselves: tuning relies on them under `python -O` too, which drops assertions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tvmconv.problem.dtypes import FLOAT32_UNIT, NARROW, STORAGE_TYPES


class Rounded(NamedTuple):
    """Further errors that results may have because factors of their products were rounded."""

    largest: np.ndarray | float
    """The largest error of each element."""
    typical: np.ndarray | float
    """The bound of the root mean square, element by element."""


NOT_ROUNDED = Rounded(0.0, 0.0)


def assert_close(
    got: np.ndarray,
    reference: np.ndarray,
    magnitude: np.ndarray,
    terms: int,
    rounding: float = 0.0,
    evaluation: np.ndarray | float = 0.0,
    operands: Rounded = NOT_ROUNDED,
) -> None:
    """Assert that `got` is the float64 `reference`, computed in float32 and stored in the dtype of `got`.

    `magnitude` is the reference of the absolute values of all operands, without an activation but times its steepest
    slope; `terms` is the number of products in a sum, and `evaluation` the error of the activation's expression, for
    each element. On top of that an element may be wrong by `terms + 4` float32 roundings of its magnitude (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.1: any order of summation, then scale, shift, residual and
    the store), and the root mean square over all elements by the square root of that number of roundings. NaN and
    infinity have to be where the reference has them. `rounding`, a share of the magnitude, is allowed further where
    operands, or results between two operations, are rounded to less than float32. The errors in `operands` are added to
    both bounds.
    """
    storage = STORAGE_TYPES[str(got.dtype)]
    if got.shape != reference.shape:
        raise AssertionError(f"shape {got.shape}, expected {reference.shape}")
    with np.errstate(over="ignore"):
        stored = reference.astype(storage.numpy).astype(np.float64)
    for name, test in (("NaN", np.isnan), ("infinity", np.isinf)):
        differs = test(got) != test(stored)
        if differs.any():
            raise AssertionError(f"{name} at the wrong indices: {_where(differs)}")
    finite = np.isfinite(stored) & np.isfinite(magnitude)
    roundings = terms + 4
    magnitude = np.where(finite, magnitude, 0)
    unit = magnitude * FLOAT32_UNIT
    # The float32 operations count the rounding of a store in float32.
    unit_of_store = storage.unit if storage.name in NARROW else 0.0
    storing = np.where(finite, np.abs(stored), 0) * unit_of_store + storage.least
    storing += rounding * magnitude + np.where(finite, evaluation, 0)
    largest, typical = (np.where(finite, each, 0) for each in operands)
    error = np.abs(np.where(finite, got.astype(np.float64) - reference, 0))
    wrong = error > roundings * unit + storing + largest
    if wrong.any():
        where = _where(wrong, got, reference)
        raise AssertionError(f"{wrong.sum()} of {wrong.size} elements are wrong: {where}")
    allowed = roundings**0.5 * unit + storing + typical
    rms, expected_rms = (float(np.sqrt(np.mean(values**2))) for values in (error, allowed))
    if rms > expected_rms:
        raise AssertionError(f"root mean square error {rms:.3g}, expected at most {expected_rms:.3g}")


def assert_rounded(
    got: np.ndarray,
    reference: np.ndarray,
    error: np.ndarray | float,
    stored: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Assert that `got` holds the integers that `stored` makes of the float64 `reference`.

    Each integer has to be exact, except where the reference is no further from the middle between two integers than the
    `error` that float32 arithmetic may make before it is rounded: there it may be either. An error of 0 allows nothing.
    """
    if got.shape != reference.shape:
        raise AssertionError(f"shape {got.shape}, expected {reference.shape}")
    lowest, highest = stored(reference - error), stored(reference + error)
    wrong = ~((lowest <= got) & (got <= highest))
    if wrong.any():
        where = _where(wrong, got, stored(reference))
        raise AssertionError(f"{wrong.sum()} of {wrong.size} elements are wrong: {where}")


def _where(wrong: np.ndarray, got: np.ndarray | None = None, reference: np.ndarray | None = None) -> str:
    indices = [tuple(map(int, index)) for index in np.argwhere(wrong)[:5]]
    if got is None or reference is None:
        return ", ".join(map(str, indices))
    return ", ".join(f"{index}: {got[index]!s} for {reference[index]:.8g}" for index in indices)
