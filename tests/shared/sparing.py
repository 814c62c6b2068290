"""Tables of cases of which `make test` tries some, and `make release-check` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sparing(cases: Iterable[Any], chosen: Callable[[int], bool]) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`; those whose number is not chosen are marked for a release.

    A case that is a tuple has the values of several parameters.
    """
    return [
        case
        if chosen(number)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.release)
        for number, case in enumerate(cases)
    ]


def pairs(some: Iterable[Any], others: Iterable[Any]) -> list[tuple[Any, Any, int]]:
    """Return each of some values with each of others, and a number, the sum of their indices, to vary the rest by."""
    listed = list(others)
    return [(one, other, i + j) for i, one in enumerate(some) for j, other in enumerate(listed)]


def in_turns(number: int) -> bool:
    """Choose one case of each two, of a product with two values: the first and the second of these in turns."""
    return (number + number // 2) % 2 == 0


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases, of which `make test` tries the first and then one of `step`."""
    return sparing(cases, lambda number: number % step == 0)
