"""Winograd's convolution on a real GPU."""

from __future__ import annotations

from functools import partial

import on_gpu
import pytest
from winograd_cases import CASES, TEAMS

from tvmconv.targets import has_gpu

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")

check = partial(on_gpu.check, "winograd")


@pytest.mark.parametrize("name", [*CASES, *TEAMS])
def test_configuration(name: str) -> None:
    check(*(CASES | TEAMS)[name])


@pytest.mark.parametrize("name", CASES)
def test_default_configuration(name: str) -> None:
    problem, _ = CASES[name]
    check(problem, None)
