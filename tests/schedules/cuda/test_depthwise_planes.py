"""Depthwise convolution of whole planes on tensor cores: what is peculiar to it, beside the tests of every template."""

from __future__ import annotations

import re
from functools import partial
from statistics import geometric_mean

import numpy as np

from tests.emulated import twins_and_cubins
from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.bands import planes
from tests.schedules.cases.planes import CASES, last
from tvmconv.dispatch import algorithms_for, select, template_for
from tvmconv.lowering import KERNEL_NAME, Span, lower, with_subtensors
from tvmconv.lowering.gpu.intrinsics import with_intrinsics
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_planes import Config
from tvmconv.schedules.cuda.depthwise_planes import template as depthwise_planes
from tvmconv.testing import check_result, random_operands

compiled = partial(twins_and_cubins.compiled, "depthwise_planes")


def test_part_of_a_joined_output() -> None:
    """Where a kernel writes some channels of a larger tensor, images are further apart."""
    problem, config = CASES["7x7"]
    scheduled = lower(problem, select(problem, SM_90, config, "depthwise_planes"), SM_90, KERNEL_NAME)
    func = with_intrinsics(with_subtensors(scheduled, {"output": Span(1, 12, 4)}, SM_90))
    operands = random_operands(problem.workload)
    joined = np.zeros((4, 12, 14, 14), np.float16)
    (kernel,) = device_functions(func, SM_90)
    Emulator(kernel, {"x": operands["x"], "w": operands["w"], "output": joined})
    check_result(problem.workload, operands, joined[:, 4:8])
    assert not joined[:, :4].any()
    assert not joined[:, 8:].any()


def test_default_of_few_warps() -> None:
    """Taps of as many warps as make up whole vectors of NHWC would not fit into shared memory."""
    problem = last(planes((1, 8, 14, 14), 127))
    assert depthwise_planes.default_config(problem, SM_90) == depthwise_planes.LEAST
    assert select(problem, SM_90).name.startswith("cuda/")


def test_each_batch_has_a_kernel_of_its_own() -> None:
    """One for any batch would make its matrices for each image alone."""
    problem = planes((8, 4, 14, 14), 7)
    assert "depthwise_planes" in algorithms_for(problem, SM_90)
    assert "depthwise_planes" not in algorithms_for(problem.with_any_batch(), SM_90)


def test_instructions() -> None:
    """A row of the input is loaded once for both eights of rows, and whole runs are copied."""
    ptx = compiled(planes((128, 384, 14, 14), 7), Config(8, 8), SM_90)
    products = len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16", ptx))
    assert products == 2 * 8 * 2  # rows of the input that are unrolled, images and eights
    assert "cp.async.cg.shared.global" in ptx
    assert "st.global.v4" in ptx


def layer(channels: int, size: int, kernel: int, batch: int = 32) -> Problem:
    return planes((batch, channels, size, size), kernel)


MEASURED = [
    (layer(384, 14, 7, 128), {Config(8, 2): 18.3, Config(4, 1): 20.8, Config(16, 1): 24.0}, ("depthwise_bands", 36.2)),
    (layer(1024, 7, 13), {Config(16, 4): 8.6, Config(4, 1): 11.0}, ("depthwise_bands", 18.4)),
    (layer(512, 14, 27), {Config(8, 1): 16.7, Config(8, 4): 23.9}, ("depthwise_bands", 20.4)),
    (layer(192, 28, 7), {Config(2, 1): 16.4, Config(1, 2): 23.9}, ("depthwise", 27.0)),
    (layer(256, 28, 29), {Config(2, 1): 48.3, Config(1, 2): 74.3}, ("depthwise_bands", 37.4)),
    (layer(768, 7, 7), {Config(8, 4): 5.8, Config(4, 1): 7.5}, ("depthwise", 7.5)),
    (layer(672, 14, 5), {Config(4, 2): 10.3, Config(16, 4): 13.4}, ("depthwise", 12.6)),
    (layer(1152, 7, 5), {Config(16, 4): 6.9, Config(4, 1): 9.2}, ("depthwise", 7.9)),
    (layer(960, 7, 3), {Config(16, 4): 5.6, Config(8, 1): 6.9}, ("depthwise", 5.0)),
    (last(layer(384, 14, 7, 128)), {Config(4, 8): 29.3, Config(4, 2): 59.3}, ("depthwise_nhwc", 51.9)),
    (last(layer(1024, 7, 13)), {Config(8, 4): 10.6, Config(1, 8): 24.8}, ("depthwise_nhwc", 32.8)),
    (last(layer(768, 7, 7)), {Config(4, 8): 6.3, Config(1, 8): 13.1}, ("depthwise_nhwc", 9.6)),
    (last(layer(672, 14, 5)), {Config(4, 8): 14.9, Config(4, 2): 28.2}, ("depthwise_nhwc", 12.1)),
    (last(layer(512, 14, 3)), {Config(4, 8): 10.5, Config(4, 2): 21.1}, ("depthwise_nhwc", 8.7)),
]
"""Microseconds in float16 on an H100, with cold caches: of a fast configuration, of slower ones, and of another
template's default."""


def test_estimates_choose_fast_configurations() -> None:
    """They take 1.05 times as long as the fastest ones in the mean, though one of the orders may be wrong."""
    losses = []
    for problem, times, _ in MEASURED:
        chosen = min(times, key=lambda config: depthwise_planes.estimate(problem, config, SM_90))
        losses.append(times[chosen] / min(times.values()))
    assert geometric_mean(losses) < 1.05
    assert losses.count(1) >= len(losses) - 1


def test_the_template_with_the_least_estimate_is_fast() -> None:
    losses = []
    for problem, times, (name, time) in MEASURED:
        own = min(depthwise_planes.estimate(problem, config, SM_90) for config in times)
        template = template_for(problem, SM_90, name)
        other = template.estimate(problem, template.default_config(problem, SM_90), SM_90)
        chosen = min(times.values()) if own < other else time
        losses.append(chosen / min(*times.values(), time))
    assert geometric_mean(losses) < 1.08
