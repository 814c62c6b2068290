"""Winograd's convolution on tensor cores: numbers through serial twins and an emulator, and machine code."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest
import twins_and_cubins
from spaces import check_refused, check_template
from sparing import every
from twins_and_cubins import SM_90
from winograd_cases import CASES, TEAMS, conv

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.schedules.cuda import winograd
from tvmconv.schedules.cuda.winograd import Config
from tvmconv.targets import resolve_target
from tvmconv.testing import random_configs

run_twin = partial(twins_and_cubins.run_twin, "winograd")
compiled = partial(twins_and_cubins.compiled, "winograd")
SM_80 = resolve_target({"kind": "cuda", "arch": "sm_80"})


@pytest.mark.parametrize(("problem", "config"), [*CASES.values(), *TEAMS.values()], ids=[*CASES, *TEAMS])
def test_serial_twin(problem: Problem, config: Config) -> None:
    run_twin(problem, config)


@pytest.mark.parametrize(("problem", "config"), every(3, CASES.values()), ids=CASES)
def test_lowered_kernels(problem: Problem, config: Config) -> None:
    """A kernel for each transform, one for the product, and one where the transformed weight is taken apart."""
    runs = twins_and_cubins.emulated_runs("winograd", problem, config)
    assert len(runs) == 4 + config.wgmma


@pytest.mark.parametrize("name", every(4, CASES))
def test_random_legal_configuration(name: str) -> None:
    problem, _ = CASES[name]
    (config,) = random_configs(problem.workload, SM_90, 1, "winograd")
    run_twin(problem, config)


@pytest.mark.parametrize(("name", "target"), [("one-team", SM_90), ("two-teams", SM_90), ("uneven-padding", SM_80)])
def test_cubin(name: str, target: object) -> None:
    problem, config = (CASES | TEAMS)[name]
    compiled(problem, config, target)


@pytest.mark.parametrize("name", every(3, CASES))
def test_space_has_the_default_and_is_legal(name: str) -> None:
    problem, config = CASES[name]
    check_template(winograd, problem, SM_90)
    assert winograd.space(problem, SM_90).violated(config) == []
