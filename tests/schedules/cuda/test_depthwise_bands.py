"""Depthwise convolution on tensor cores: numbers through serial twins and an emulator, and machine code."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm

from tests.emulated.twins_and_cubins import SM_90, compiled, run_twin
from tests.schedules.cases.bands import EPILOGUE, planes
from tests.schedules.spaces import check_refused
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.dispatch.registry import algorithm_of, template_name
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_bands import Config
from tvmconv.schedules.cuda.depthwise_bands import template as depthwise_bands
from tvmconv.schedules.cuda.depthwise_planes import template as depthwise_planes
from tvmconv.targets import resolve_target
from tvmconv.testing import random_operands

SM_75 = resolve_target({"kind": "cuda", "arch": "sm_75"})


@pytest.mark.parametrize("template", [depthwise_bands, depthwise_planes], ids=["bands", "planes"])
def test_nan_and_infinity_stay_in_their_windows(template: Any) -> None:
    problem = planes((1, 2, 9, 20), 7, **EPILOGUE)
    operands = random_operands(problem.workload)
    operands["x"][0, 0, 0, 0], operands["x"][0, 0, 8, 19], operands["w"][1, 0, 3, 3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        run_twin(algorithm_of(template_name(template)), problem, template.LEAST, **operands)


def test_instructions() -> None:
    """Columns that are padding alone are not multiplied, and columns are loaded once for all bands."""
    ptx = compiled("depthwise_bands", planes((32, 128, 56, 56), 31), Config(7, 64, 2, 1), SM_90)
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16", ptx)) == 2 * 10
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4", ptx)) == 2 * 2
    assert "cp.async.cg.shared.global" in ptx


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
