"""Convolution of few input channels on the tensor cores of a real GPU."""

from __future__ import annotations

from functools import partial

import pytest

from tests.schedules.cases import on_gpu
from tests.schedules.cases.shallow import CASES
from tvmconv.schedules.cuda.shallow import template as shallow
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.testing.configs import legal_configs

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
TARGET = resolve_target("cuda")

check = partial(on_gpu.check, "shallow")


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
