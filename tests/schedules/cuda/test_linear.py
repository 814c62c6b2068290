"""Linear layers of several rows on tensor cores: numbers through serial twins, and machine code."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.matvec import rows
from tests.schedules.spaces import check_refused
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.tensor.linear import Config

compiled = partial(twins_and_cubins.compiled, "linear")


REFUSED = {
    "groups": (
        Problem(ConvWorkload.conv2d((4, 8, 1, 1), (8, 4, 1, 1), groups=2)),
        "is for dense convolutions in one group",
    ),
    "rows": (rows(6, 64, 32), "takes rows in multiples of 4, not 6"),
    "many-rows": (rows(2048, 64, 32), "takes up to 1024 rows, not 2048"),
    "few-rows": (rows(32, 64, 32, "float32"), "takes more than 32 rows in float32, not 32"),
    "pixels": (
        Problem(ConvWorkload.conv2d((4, 8, 1, 2), (8, 8, 1, 1), dtype="float16")),
        "takes 1x1 kernels on images of one pixel, without padding",
    ),
    "precision": (rows(40, 64, 32, "float32", precision="strict"), "is not for the precision strict"),
}


@pytest.mark.parametrize(("problem", "why"), REFUSED.values(), ids=REFUSED)
def test_obstacles(problem: Problem, why: str) -> None:
    check_refused("linear", problem, SM_90, why)


def test_weight_is_read_as_it_lies() -> None:
    """The rows are taken apart into two numbers first, in a kernel that reads nothing of the weight."""
    ptx = compiled(rows(128, 1024, 256, "float32"), Config(128, 64, 1, 1, 3, 4, True, 2), SM_90)
    assert len(re.findall(r"\.entry", ptx)) == 3


@pytest.mark.parametrize(("channels", "outputs"), [(25088, 4096), (4096, 4096), (1024, 4096), (768, 3072)])
def test_choice(channels: int, outputs: int) -> None:
    """Of few rows no weight is taken apart in a kernel of its own."""
    for count in (32, 128):
        chosen = select(rows(count, channels, outputs, "float32"), SM_90)
        assert chosen.name == "cuda/linear" or not chosen.config.wgmma
    assert select(rows(128, channels, outputs, "float32"), SM_90).name == "cuda/linear"
