"""A part of the random graphs of ONNX: `python -m tests.random_graphs` runs as many as one likes."""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests import random_graphs
from tests.shared.sparing import sparing

COUNT, TRIED = 10, 6
"""The number of graphs of each kind, which take half a second on a core, and of those that `make test` tries."""

NAMES = [f"{kind}:{number}" for number in range(COUNT) for kind in random_graphs.KINDS]


@cache
def outcome_of(name: str) -> tuple[str, str]:
    _, outcome, why = json.loads(random_graphs.result(name))
    return outcome, why


@pytest.mark.parametrize("name", sparing(NAMES, lambda number: number < TRIED * len(random_graphs.KINDS)))
def test_as_onnx_runtime_or_refused(name: str) -> None:
    outcome, why = outcome_of(name)
    assert outcome not in random_graphs.FAILURES, why


def test_most_are_computed() -> None:
    """A graph that is refused shows nothing: of each kind most are not."""
    for kind in random_graphs.KINDS:
        outcomes = [outcome_of(f"{kind}:{number}")[0] for number in range(4)]
        assert outcomes.count(random_graphs.RIGHT) >= 3, f"{kind}: {outcomes}"
