"""Convolution in narrow groups on the tensor cores of a real GPU."""

from __future__ import annotations

from functools import partial

import pytest

from tests.schedules.cases import on_gpu
from tests.schedules.cases.grouped import CASES
from tvmconv.schedules.cuda.grouped import template as grouped
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.testing.configs import legal_configs

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
TARGET = resolve_target("cuda")

check = partial(on_gpu.check, "grouped")


@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str) -> None:
    check(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_default_configuration(name: str) -> None:
    """NaN and infinities are where the reference has them, and in no other group."""
    problem, _ = CASES[name]
    check(problem, None)
    check(problem, None, nonfinite=True)


@pytest.mark.parametrize("name", CASES)
def test_random_configuration(name: str) -> None:
    problem, _ = CASES[name]
    check(problem, next(legal_configs(grouped.space(problem, TARGET), name)))
