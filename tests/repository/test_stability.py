"""Equal bits in call after call, and no leaked memory; `python -m tests.stability` runs for longer."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from tests.stability import GROWTH, THREADS, callers, repeated


@pytest.mark.parametrize("threads", [1, THREADS])
def test_calls_change_nothing(threads: int) -> None:
    for name, call in callers().items():
        different, grown = repeated(call, 5_000, threads)
        assert (name, different) == (name, 0)
        assert grown < GROWTH, name


def test_a_leak_and_another_bit_are_seen() -> None:
    kept, numbers = [], count()

    def call() -> np.ndarray:
        kept.append(b"x" * 8_000)  # in all more than what a process may have free by now
        return np.full(4, next(numbers) == 7_000)

    different, grown = repeated(call, 10_000)
    assert different == 1
    assert grown > GROWTH
