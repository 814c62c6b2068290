"""The rows of the tests of every template: examples, and cases that defaults and random configurations seldom reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.schedules.cases import (
    bands,
    depthwise,
    direct,
    grouped,
    linear,
    matvec,
    nhwc,
    planes,
    shallow,
    sparse_cpu,
    sparse_cuda,
    winograd,
)
from tvmconv.dispatch.registry import TEMPLATES
from tvmconv.problem import FusedProblem, Problem


@dataclass(frozen=True)
class Row:
    """A problem for a template, and its configuration; None for the default one."""

    id: str
    name: str
    problem: Problem
    config: Any = None

    @property
    def is_fused(self) -> bool:
        """True for several layers in one kernel, which has no twin on a CPU: its warps exchange numbers."""
        return isinstance(self.problem, FusedProblem)

    @property
    def is_emulated(self) -> bool:
        """True if the emulator of GPUs runs its kernels: no warps have roles, and no weight is compiled in."""
        return is_on_gpu(self.name) and self.problem.sparsity is None and not getattr(self.config, "teams", 0)


CONFIGURED: dict[str, dict[str, tuple[Problem, Any]]] = {
    "cpu/sparse": sparse_cpu.CASES,
    "cuda/depthwise": depthwise.CASES | depthwise.ROWS,
    "cuda/depthwise_bands": bands.CASES,
    "cuda/depthwise_nhwc": nhwc.CASES,
    "cuda/depthwise_planes": planes.CASES,
    "cuda/direct": direct.CASES,
    "cuda/grouped": grouped.CASES,
    "cuda/im2win": direct.IM2WIN,
    "cuda/linear": linear.CASES | linear.TEAMS,
    "cuda/matvec": matvec.CASES,
    "cuda/shallow": shallow.CASES,
    "cuda/sparse": sparse_cuda.CASES,
    "cuda/winograd": winograd.CASES | winograd.TEAMS,
}

EXAMPLES = [
    Row(f"{name}-{number}", name, problem)
    for name, template in TEMPLATES.items()
    for number, problem in enumerate(getattr(template, "examples", ()))
]
FUSED = {row.id: row.problem for row in EXAMPLES if isinstance(row.problem, FusedProblem)}
"""The examples of several layers in one kernel, for the tests of every kind of them."""

CASES = [Row(f"{name}-{case}", name, *row) for name, cases in CONFIGURED.items() for case, row in cases.items()]


def is_on_gpu(name: str) -> bool:
    return name.startswith("cuda/")


def by_row(rows: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with rows, some of which may be marked."""
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.id)
