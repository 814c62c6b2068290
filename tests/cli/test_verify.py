"""Comparing outputs with a reference, as `tvmconv run --verify` does."""

from __future__ import annotations

import numpy as np
import pytest

from tvmconv.checking import verify

INF, NAN = float("inf"), float("nan")
COMPARISONS = [
    ("equal", [1.0, -2.0], [1.0, -2.0], "float32", True),
    ("rounded", [1.0, -2.0001], [1.0, -2.0], "float32", True),
    ("wrong", [1.0, -2.001], [1.0, -2.0], "float32", False),
    ("small values count by the largest", [1e-6, -2.0], [0.0, -2.0], "float32", True),
    ("half precision", [1.0, -2.03], [1.0, -2.0], "float16", True),
    ("same infinities", [INF, -INF, 1.0], [INF, -INF, 1.0], "float32", True),
    ("another infinity", [-INF, 1.0], [INF, 1.0], "float32", False),
    ("finite where infinite", [3.0, 1.0], [INF, 1.0], "float32", False),
    ("same NaN", [NAN, 1.0], [NAN, 1.0], "float32", True),
    ("NaN where a number is", [NAN, 1.0], [2.0, 1.0], "float32", False),
    ("a number where NaN is", [2.0, 1.0], [NAN, 1.0], "float32", False),
    ("integers", [1, 1000], [1, 1001], "int64", False),
    ("another shape", [1.0], [1.0, 1.0], "float32", False),
    ("nothing", [], [], "float32", True),
]


@pytest.mark.parametrize(
    ("output", "reference", "dtype", "agrees"), [case[1:] for case in COMPARISONS], ids=[c[0] for c in COMPARISONS]
)
def test_compare(output: list[float], reference: list[float], dtype: str, agrees: bool) -> None:
    (found,) = verify.compare({"y": np.array(output, dtype)}, {"y": np.array(reference, dtype)})
    assert found.agrees is agrees


@pytest.mark.parametrize(
    ("output", "reference", "dtype", "agrees"),
    [
        ([1.0, -2.05], [1.0, -2.0], "float32", True),
        ([1.0, -2.07], [1.0, -2.0], "float32", False),
        ([100, 7], [100, 9], "uint8", True),
        ([100, 7], [100, 10], "uint8", False),
        ([100, 7], [100, 8], "int64", False),
    ],
)
def test_compare_quantized_networks(output: list[float], reference: list[float], dtype: str, agrees: bool) -> None:
    outputs, references = ({"y": np.array(values, dtype)} for values in (output, reference))
    (found,) = verify.compare(outputs, references, {"uint8"})
    assert found.agrees is agrees


@pytest.mark.parametrize(("factors", "agrees"), [("float32", False), ("tf32", True), ("float16", True)])
def test_compare_networks_of_factors(factors: str, agrees: bool) -> None:
    """A thousandth of the largest output is as much as factors with 11 bits leave, and too much for float32."""
    outputs, references = ({"y": np.array([1.0, second], "float32")} for second in (-2.002, -2.0))
    (found,) = verify.compare(outputs, references, {factors})
    assert found.agrees is agrees


def test_compare_wants_the_same_dtype() -> None:
    (found,) = verify.compare({"y": np.ones(2, "float64")}, {"y": np.ones(2, "float32")})
    assert not found.agrees
