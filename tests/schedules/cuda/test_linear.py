"""Linear layers of several rows on tensor cores: what is peculiar to them, beside the tests of every template."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.matvec import rows
from tvmconv.dispatch import select
from tvmconv.schedules.cuda.tensor.linear import Config

compiled = partial(twins_and_cubins.compiled, "linear")


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
