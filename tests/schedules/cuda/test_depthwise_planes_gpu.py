"""Depthwise convolution of whole planes on the tensor cores of a real GPU."""

from __future__ import annotations

from functools import partial

import pytest

from tests.schedules.cases import on_gpu
from tests.schedules.cases.planes import CASES
from tvmconv.schedules.cuda.depthwise_planes import template as depthwise_planes
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.testing.configs import legal_configs

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
TARGET = resolve_target("cuda")

check = partial(on_gpu.check, "depthwise_planes")


@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str) -> None:
    """NaN and infinities are where the reference has them, which zeros of a matrix are multiplied with first."""
    check(*CASES[name])
    check(*CASES[name], nonfinite=True)


@pytest.mark.parametrize("name", CASES)
def test_default_configuration(name: str) -> None:
    problem, _ = CASES[name]
    check(problem, None)


@pytest.mark.parametrize("name", CASES)
def test_random_configuration(name: str) -> None:
    problem, _ = CASES[name]
    check(problem, next(legal_configs(depthwise_planes.space(problem, TARGET), name)))
