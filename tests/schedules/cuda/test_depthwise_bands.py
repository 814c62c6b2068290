"""Depthwise convolution on tensor cores: numbers through serial twins and an emulator, and machine code."""

from __future__ import annotations

import re
from functools import partial

import msgspec
import numpy as np
import pytest
import tvm

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.bands import CASES, EPILOGUE, planes
from tests.schedules.spaces import check_refused, check_template, check_whole_space
from tests.shared.sparing import every
from tvmconv import ConvWorkload
from tvmconv.compute.depthwise.bands import in_planes
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_bands import Config
from tvmconv.schedules.cuda.depthwise_bands import template as depthwise_bands
from tvmconv.schedules.cuda.depthwise_bands.tiles import shared_bytes
from tvmconv.targets import resolve_target
from tvmconv.testing import random_operands
from tvmconv.testing.configs import legal_configs

SM_80, SM_75 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_80", "sm_75"))

run_twin, run_emulated, compiled = (
    partial(twins_and_cubins.run_twin, "depthwise_bands"),
    partial(twins_and_cubins.run_emulated, "depthwise_bands"),
    partial(twins_and_cubins.compiled, "depthwise_bands"),
)

by_case = pytest.mark.parametrize(("problem", "config"), CASES.values(), ids=CASES)


@by_case
def test_serial_twin(problem: Problem, config: Config) -> None:
    run_twin(problem, config)


@by_case
def test_lowered_kernel(problem: Problem, config: Config) -> None:
    """Copies are whole and have arrived where they are multiplied, and a block has the memory that the model counts."""
    run = run_emulated(problem, config)
    assert run.shared_bytes == shared_bytes(in_planes(problem.workload), config)


@pytest.mark.parametrize("name", CASES)
def test_random_configuration(name: str) -> None:
    problem, _ = CASES[name]
    run_twin(problem, next(legal_configs(depthwise_bands.space(problem, SM_90), name)))


def test_nan_and_infinity_stay_in_their_windows() -> None:
    problem = planes((1, 2, 9, 20), 7, **EPILOGUE)
    operands = random_operands(problem.workload)
    operands["x"][0, 0, 0, 0], operands["x"][0, 0, 8, 19], operands["w"][1, 0, 3, 3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        run_twin(problem, depthwise_bands.LEAST, **operands)


def test_open_batch() -> None:
    problem = planes((1, 4, 9, 10), 9, **EPILOGUE)
    for batch in (1, 5):
        at = msgspec.structs.replace(problem.workload, batch=batch)
        run_twin(msgspec.structs.replace(problem, open_sizes=("batch",)), Config(2, 16, 1, 2), at)


@pytest.mark.parametrize(("problem", "config"), every(3, CASES.values()), ids=CASES)
def test_cubin(problem: Problem, config: Config) -> None:
    compiled(problem, config, SM_90)


@pytest.mark.parametrize("name", ["29x29-bfloat16", "11x11-float32-epilogue"])
def test_cubin_of_the_first_architecture(name: str) -> None:
    compiled(*CASES[name], SM_80)


def test_instructions() -> None:
    """Columns that are padding alone are not multiplied, and columns are loaded once for all bands."""
    ptx = compiled(planes((32, 128, 56, 56), 31), Config(7, 64, 2, 1), SM_90)
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16", ptx)) == 2 * 10
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4", ptx)) == 2 * 2
    assert "cp.async.cg.shared.global" in ptx


@pytest.mark.parametrize("name", CASES)
def test_space_has_the_default_and_is_legal(name: str) -> None:
    problem, _ = CASES[name]
    check_template(depthwise_bands, problem, SM_90)


def test_whole_space_is_legal() -> None:
    check_whole_space(depthwise_bands.space(CASES["13x13-odd"][0], SM_90))


REFUSED = {
    "stride": (planes((1, 2, 9, 9), 7, stride=2), SM_90, "takes strides and dilations of 1"),
    "dilation": (planes((1, 2, 9, 9), 3, dilation=(1, 2)), SM_90, "takes strides and dilations of 1"),
    "multiplier": (
        Problem(ConvWorkload.depthwise((1, 2, 9, 9), (2, 2, 3, 3), dtype="float16")),
        SM_90,
        "takes one output channel for each input channel, not 2",
    ),
    "strict": (
        msgspec.structs.replace(planes((1, 2, 9, 9), 7, dtype="float32"), precision="strict"),
        SM_90,
        "is not for the precision strict",
    ),
    "window": (planes((1, 1, 400, 400), 399), SM_90, "takes windows that fit in shared memory, not of 399x399"),
    "old": (planes((1, 2, 9, 9), 7), SM_75, "needs a GPU with tensor cores, sm_80 or later, not sm_75"),
}


@pytest.mark.parametrize(("problem", "target", "why"), REFUSED.values(), ids=REFUSED)
def test_obstacles(problem: Problem, target: tvm.target.Target, why: str) -> None:
    check_refused("depthwise_bands", problem, target, why)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (planes((32, 128, 56, 56), 31), "depthwise_bands"),
        (planes((32, 256, 28, 28), 29), "depthwise_bands"),
        (planes((32, 240, 28, 28), 5), "depthwise"),
        (planes((32, 144, 56, 56), 3), "depthwise"),
        (planes((8, 4096, 1, 2048), (1, 4), padding=(0, 3, 0, 0)), "depthwise"),
    ],
)
def test_choice(problem: Problem, name: str) -> None:
    """Large windows are multiplied on tensor cores; small ones take no longer than a copy without them."""
    assert select(problem, SM_90).name == f"cuda/{name}"
