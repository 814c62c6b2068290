"""Convolution in narrow groups on tensor cores: what is peculiar to it, beside the tests of every template."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import tvmconv
from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.grouped import CASES, EPILOGUE, groups
from tests.shared.network_graph import Graph
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.schedules.cuda.grouped import Config
from tvmconv.schedules.cuda.grouped import template as grouped
from tvmconv.schedules.cuda.machine import REGISTERS
from tvmconv.targets import cuda
from tvmconv.testing import random_operands

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


def test_many_threads_share_all_registers() -> None:
    """Where those of a thread do not suffice some are spilled, and the rest is not given away."""
    config = Config(block_y=4, block_x=24, warps_m=1, warps_n=3, images=4)
    problem = groups(8, 24, (32, 17, 17), 5, shift=True, activation="relu")
    executable, *_ = build_kernel(problem, select(problem, SM_90, config, "grouped"), SM_90)
    (found,) = cuda.kernel_resources(cuda.sources(executable.mod)[0], "sm_90")
    assert found.registers == REGISTERS // config.threads // 8 * 8
    assert found.stack_bytes < 1000


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
