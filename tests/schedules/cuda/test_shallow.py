"""Convolution of few input channels on tensor cores: what is peculiar to it, beside the tests of every template."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import tvmconv
from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.shallow import image
from tests.shared.network_graph import Graph
from tvmconv.schedules.cuda.shallow import Config
from tvmconv.testing import random_operands

run_emulated = partial(twins_and_cubins.run_emulated, "shallow")
compiled = partial(twins_and_cubins.compiled, "shallow")


def test_instructions() -> None:
    """A row of a 7x7 window of three channels is 22 terms, so a sum takes ten steps of 16."""
    ptx = compiled(image((1, 3, 64, 64), 64, 7, stride=2, padding=3), Config(4, 16, 32, 1, 1), SM_90)
    matrices = 2 * 2
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16", ptx)) == 10 * matrices * 4
    assert len(re.findall(r"ld\.shared\.b32", ptx)) == 10 * matrices * 4


def test_a_network_takes_it() -> None:
    """It reads the network's input in NCHW, and what follows is in NHWC."""
    graph = Graph((8, 3, 64, 64))
    first = graph.conv("x", (32, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    model = graph.model(graph.conv(first, (64, 32, 1, 1)))
    network = tvmconv.build(tvmconv.import_model(model), SM_90, precision="float16")
    assert [layer.kernel for layer in network.layers] == ["tvmconv cuda/shallow", "tvmconv cuda/tensor"]


@pytest.mark.parametrize("channels", [2, 3])
def test_nan_and_infinity_stay_in_their_windows(channels: int) -> None:
    """Words of shared memory hold terms of two pixels, of which a window may read one."""
    problem = image((1, channels, 6, 21), 8, stride=2)
    operands = random_operands(problem.workload)
    operands["x"][0, 0, 0, 0], operands["x"][0, -1, 5, 9] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        run_emulated(problem, Config(2, 8, 8, 1, 1), **operands)
