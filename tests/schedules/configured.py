"""The rows of the tests of every template: examples, and configurations that defaults and random ones seldom reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.schedules.cases import bands, depthwise, grouped, linear, matvec, nhwc, planes, shallow, winograd
from tvmconv.dispatch.registry import TEMPLATES
from tvmconv.problem import Problem


@dataclass(frozen=True)
class Row:
    """A problem for a template, and its configuration; None for the default one."""

    id: str
    name: str
    problem: Problem
    config: Any = None

    @property
    def has_roles(self) -> bool:
        """True if some warps copy for others, which no emulator runs."""
        return bool(getattr(self.config, "teams", 0))


CONFIGURED: dict[str, dict[str, tuple[Problem, Any]]] = {
    "cuda/depthwise": depthwise.CASES,
    "cuda/depthwise_bands": bands.CASES,
    "cuda/depthwise_nhwc": nhwc.CASES,
    "cuda/depthwise_planes": planes.CASES,
    "cuda/grouped": grouped.CASES,
    "cuda/linear": linear.CASES | linear.TEAMS,
    "cuda/matvec": matvec.CASES,
    "cuda/shallow": shallow.CASES,
    "cuda/winograd": winograd.CASES | winograd.TEAMS,
}

EXAMPLES = [
    Row(f"{name}-{number}", name, problem)
    for name, template in TEMPLATES.items()
    for number, problem in enumerate(getattr(template, "examples", ()))
]
CASES = [Row(f"{name}-{case}", name, *row) for name, cases in CONFIGURED.items() for case, row in cases.items()]


def is_on_gpu(name: str) -> bool:
    return name.startswith("cuda/")


def by_row(rows: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with rows, some of which may be marked."""
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.id)
