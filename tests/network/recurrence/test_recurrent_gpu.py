"""Recurrent layers in networks on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

import tvmconv
from tests.network.recurrence.recurrent_cases import CASES, Case


@pytest.mark.parametrize("case", [*CASES, Case("LSTM", 1100, 2, 3), Case("GRU", 64, 40, 30)], ids=str)
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
def test_layers_are_right(case: Case, is_open: bool) -> None:
    tensors = case.tensors()
    network = tvmconv.build(case.model(tensors, sizes=("steps", "batch") if is_open else None), "cuda")
    for actual, wanted in zip(network(**case.feeds(tensors)), case.expected(tensors), strict=True):
        # Products of the input are of TF32 parts, whose error is relative to their sum.
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
