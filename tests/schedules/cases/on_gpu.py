"""The check of a template's kernel on a real GPU."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv.problem import Problem
from tvmconv.targets import resolve_target
from tvmconv.testing import conformance
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import Trial


def check(algorithm: str, problem: Problem, config: Any, seed: int = 1, nonfinite: bool = False) -> None:
    """Check the result of an algorithm's kernel, into an output filled with NaN, against the float64 reference."""
    knobs = None if config is None else msgspec.to_builtins(config)
    trial = Trial(problem.workload, algorithm, knobs, seed, nonfinite, precision=problem.precision)
    conformance.check(How(str(resolve_target("cuda"))), trial)
