"""Depthwise convolution by bands on tensor cores: what is peculiar to it, beside the tests of every template."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.emulated.twins_and_cubins import SM_90, compiled, run_twin
from tests.schedules.cases.bands import EPILOGUE, planes
from tvmconv.dispatch.registry import algorithm_of, template_name
from tvmconv.schedules.cuda.depthwise_bands import Config
from tvmconv.schedules.cuda.depthwise_bands import template as depthwise_bands
from tvmconv.schedules.cuda.depthwise_planes import template as depthwise_planes
from tvmconv.testing import random_operands


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
