"""Templates with the product of `cuda/tensor` on a real GPU: linear layers and Winograd's convolution."""

from __future__ import annotations

import pytest

from tests.schedules.cases import linear as linear_cases
from tests.schedules.cases import winograd as winograd_cases
from tests.schedules.cases.on_gpu import check
from tvmconv.targets import has_gpu

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")

FILES = {"linear": linear_cases, "winograd": winograd_cases}
"""The files with the cases of each algorithm."""


@pytest.mark.parametrize(
    ("algorithm", "name"), [(key, name) for key, cases in FILES.items() for name in (*cases.CASES, *cases.TEAMS)]
)
def test_configuration(algorithm: str, name: str) -> None:
    cases = FILES[algorithm]
    check(algorithm, *(cases.CASES | cases.TEAMS)[name])


@pytest.mark.parametrize(("algorithm", "name"), [(key, name) for key, cases in FILES.items() for name in cases.CASES])
def test_default_configuration(algorithm: str, name: str) -> None:
    problem, _ = FILES[algorithm].CASES[name]
    check(algorithm, problem, None)
