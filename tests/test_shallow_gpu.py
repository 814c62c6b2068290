"""Convolution of few input channels on the tensor cores of a real GPU."""

from __future__ import annotations

import msgspec
import pytest
from shallow_cases import CASES

from tvmconv.problem import Problem
from tvmconv.schedules.cuda import shallow
from tvmconv.schedules.cuda.shallow import Config
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.testing import conformance
from tvmconv.testing.configs import legal_configs
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import Trial

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
TARGET = resolve_target("cuda")


def check(problem: Problem, config: Config | None, nonfinite: bool = False) -> None:
    """Check a kernel's result, into an output filled with NaN, against the float64 reference."""
    knobs = None if config is None else msgspec.to_builtins(config)
    conformance.check(How(str(TARGET)), Trial(problem.workload, "shallow", knobs, 1, nonfinite))


@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str) -> None:
    check(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_default_configuration(name: str) -> None:
    """NaN and infinities are where the reference has them."""
    problem, _ = CASES[name]
    check(problem, None)
    check(problem, None, nonfinite=True)


@pytest.mark.parametrize("name", CASES)
def test_random_configuration(name: str) -> None:
    problem, _ = CASES[name]
    check(problem, next(legal_configs(shallow.space(problem, TARGET), name)))
