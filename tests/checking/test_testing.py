"""The foundations of the checks: the reference of any convolution, and samples that show wrong elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmconv import ConvWorkload
from tvmconv.compute import conv2d_reference
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.runtime.arrays import to_torch
from tvmconv.testing import Case, Sample, check_result, random_operands

torch = pytest.importorskip("torch")


def _case(case_id: str, x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Case:
    return Case(case_id, ConvWorkload.conv2d(x, w, **options))


CASES = [
    _case("dense", (5, 3, 15, 17), (8, 3, 3, 3)),
    _case("dense-stride-dilation", (2, 3, 21, 30), (8, 3, 5, 2), stride=(2, 3), dilation=(1, 2), padding=(2, 1)),
    _case("grouped", (3, 6, 12, 10), (9, 2, 3, 3), groups=3, scale=True, shift=True, activation="relu"),
    _case("depthwise", (3, 8, 14, 16), (16, 1, 3, 3), groups=8, padding=(0, 1, 2, 3)),
    *(_case(dtype, (2, 4, 9, 9), (6, 4, 3, 3), dtype=dtype) for dtype in NARROW),
]
by_id = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@by_id
def test_reference_is_what_torch_computes(case: Case) -> None:
    workload, operands = case.workload, random_operands(case.workload)
    x, w = (to_torch(operands[name]).double() for name in ("x", "w"))
    top, left, bottom, right = workload.padding
    expected = torch.nn.functional.conv2d(
        torch.nn.functional.pad(x, (left, right, top, bottom)),
        w.reshape(workload.out_channels, -1, *workload.kernel),
        stride=workload.stride,
        dilation=workload.dilation,
        groups=workload.groups,
    )
    if workload.epilogue.scale:
        scale, shift = (torch.from_numpy(operands[name])[:, None, None] for name in ("scale", "shift"))
        expected = (expected * scale + shift).relu()
    del operands["output"]
    np.testing.assert_allclose(conv2d_reference(workload, **operands), expected.numpy(), rtol=1e-11, atol=1e-11)


def result(workload: ConvWorkload, operands: dict[str, np.ndarray]) -> np.ndarray:
    inputs = {name: array for name, array in operands.items() if name != "output"}
    return conv2d_reference(workload, **inputs).astype(workload.dtype)


@by_id
def test_sample_of_a_right_result_is_right(case: Case) -> None:
    operands = random_operands(case.workload)
    got = result(case.workload, operands)
    Sample(Problem(case.workload), operands, np.random.default_rng(0), got.size // 3).check(got)


@by_id
@pytest.mark.parametrize("index", [(0, 0, 0, 0), (-1, -1, -1, -1)], ids=["first", "last"])
def test_sample_shows_wrong_corners(case: Case, index: tuple[int, ...]) -> None:
    operands = random_operands(case.workload)
    got = result(case.workload, operands)
    got[index] += 1
    with pytest.raises(AssertionError, match="1 of .* elements are wrong"):
        Sample(Problem(case.workload), operands, np.random.default_rng(0), got.size // 3).check(got)


@by_id
def test_sample_shows_a_wrong_edge_and_what_is_not_written(case: Case) -> None:
    operands = random_operands(case.workload)
    got = result(case.workload, operands)
    got[:, :, -1] += 1
    with pytest.raises(AssertionError, match="elements are wrong"):
        Sample(Problem(case.workload), operands, np.random.default_rng(0), got.size // 3).check(got)
    got = result(case.workload, operands)
    got[1, 2, 3, 4] = np.nan
    with pytest.raises(AssertionError, match="1 of .* not written"):
        Sample(Problem(case.workload), operands, np.random.default_rng(0), got.size // 3).check(got)


def test_rounding_of_operands_is_allowed_where_it_is_known() -> None:
    workload = CASES[0].workload
    operands = random_operands(workload)
    rounded = {name: operands[name].astype("float16").astype("float32") for name in ("x", "w")}
    got = result(workload, rounded)
    check_result(workload, operands, got, rounding=2**-10)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_result(workload, operands, got)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_result(workload, operands, got * 1.02, rounding=2**-10)
