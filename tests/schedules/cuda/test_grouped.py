"""Convolution in narrow groups on tensor cores: numbers through serial twins, and machine code."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import tvm

import tvmconv
from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.grouped import CASES, EPILOGUE, groups
from tests.schedules.spaces import check_refused
from tests.shared.network_graph import Graph
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.grouped import Config
from tvmconv.schedules.cuda.grouped import template as grouped
from tvmconv.targets import resolve_target
from tvmconv.testing import random_operands

SM_75 = resolve_target({"kind": "cuda", "arch": "sm_75"})

run_twin = partial(twins_and_cubins.run_twin, "grouped")
compiled = partial(twins_and_cubins.compiled, "grouped")


def test_threads_meet_once() -> None:
    assert twins_and_cubins.run_emulated("grouped", *CASES["8-channels-stride-2"]).barriers == 1


@pytest.mark.parametrize("channels", [4, 8, 16])
def test_nan_and_infinity_stay_in_their_group(channels: int) -> None:
    problem = groups(4, channels, (1, 6, 7), **EPILOGUE)
    operands = random_operands(problem.workload)
    operands["x"][0, 0, 0, 0], operands["x"][0, 5, 6, -1], operands["w"][channels, 1, 1, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        run_twin(problem, grouped.LEAST, **operands)


@pytest.mark.parametrize(("channels", "products"), [(4, 2), (8, 1), (16, 2)])
def test_instructions(channels: int, products: int) -> None:
    """Each product is multiplied once, two vectors of channels at a time, groups of four beside zeros."""
    ptx = compiled(groups(8, channels, (1, 16, 16)), Config(4, 16, 1, 2), SM_90)
    matrices = 2 * 2 * products
    steps = 9 * max(1, channels // 8)
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16", ptx)) == matrices * (steps // 2)
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.f16", ptx)) == matrices * (steps % 2)
    assert "cp.async.cg.shared.global" in ptx


REFUSED = {
    "one group": (groups(1, 32, (1, 8, 8)), SM_90, "is for convolutions in groups of several channels"),
    "12 channels": (
        groups(2, 12, (1, 8, 8)),
        SM_90,
        "takes groups of multiples of 8 channels up to 64, or .* not of 12",
    ),
    "odd pairs": (groups(3, 4, (1, 8, 8)), SM_90, "or an even number of groups of 4, not of 4 to 4"),
    "wide": (groups(2, 96, (1, 8, 8)), SM_90, "up to 64, .*, not of 96 to 96"),
    "window": (groups(2, 8, (1, 90, 90), 81), SM_90, "takes windows that fit in shared memory and code, not of 81x81"),
    "gaps": (
        groups(2, 8, (1, 8, 8), 1, stride=2),
        SM_90,
        "takes windows at least as wide as their stride of 2, not of 1",
    ),
    "old": (groups(2, 8, (1, 8, 8)), SM_75, "needs a GPU with tensor cores, sm_80 or later, not sm_75"),
}


@pytest.mark.parametrize(("problem", "target", "why"), REFUSED.values(), ids=REFUSED)
def test_obstacles(problem: Problem, target: tvm.target.Target, why: str) -> None:
    check_refused("grouped", problem, target, why)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (groups(32, 4, (32, 56, 56)), "grouped"),
        (groups(26, 8, (1, 14, 14)), "grouped"),
        (groups(32, 32, (1, 7, 7)), "tensor"),
        (groups(2, 64, (32, 14, 14)), "tensor"),
    ],
)
def test_choice(problem: Problem, name: str) -> None:
    """Groups of few channels are multiplied without the zeros between them."""
    assert select(problem, SM_90).name == f"cuda/{name}"


def test_a_network_takes_it() -> None:
    """Tensors between convolutions are in NHWC, and the weight is laid out when the network is built."""
    graph = Graph((8, 16, 28, 28))
    wide = graph.conv("x", (64, 16, 1, 1))
    narrow = graph.conv(wide, (64, 4, 3, 3), pads=[1, 1, 1, 1], group=16)
    model = graph.model(graph.conv(narrow, (32, 64, 1, 1)))
    network = tvmconv.build(tvmconv.import_model(model), SM_90, precision="float16")
    assert [layer.kernel for layer in network.layers] == [
        f"tvmconv cuda/{name}" for name in ("tensor", "grouped", "tensor")
    ]
    assert network.layers[1].convolution.description.endswith("NHWC to NHWC float16")
