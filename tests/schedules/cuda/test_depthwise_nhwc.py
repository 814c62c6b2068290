"""Depthwise convolution in NHWC on CUDA: what is peculiar to it, beside the tests of every template."""

from __future__ import annotations

import re
from functools import partial

import msgspec
import numpy as np
import pytest

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.nhwc import WORKLOADS, config, nhwc
from tests.shared.sparing import every
from tvmconv import ConvWorkload
from tvmconv.dispatch import algorithms_for, template_for
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.depthwise_nhwc import template as depthwise_nhwc
from tvmconv.schedules.cuda.depthwise_nhwc.tiles import products
from tvmconv.testing import random_operands

run_twin = partial(twins_and_cubins.run_twin, "depthwise_nhwc")
compiled = partial(twins_and_cubins.compiled, "depthwise_nhwc")


@pytest.mark.parametrize("workload", every(4, WORKLOADS.values()), ids=WORKLOADS)
def test_default_configuration(workload: ConvWorkload) -> None:
    run_twin(Problem(workload), None)


@pytest.mark.parametrize(("dtype", "vector"), [("float16", 8), ("bfloat16", 8), ("float32", 4)])
def test_instructions(dtype: str, vector: int) -> None:
    """Each element is loaded once, in whole vectors, and each product is one instruction."""
    problem = nhwc((2, 64, 16, 16), (64, 1, 3, 3), dtype=dtype)
    chosen = config(vector=vector, threads_c=64 // vector, threads_y=2, threads_x=4, thread_y=2, thread_x=2)
    ptx = compiled(problem, chosen, SM_90)
    assert len(re.findall(r"\bfma\.rn\S*f32", ptx)) == chosen.outputs * 9
    assert len(re.findall(r"\bld\.global\S*\.v4\.\S*32", ptx)) == 16
    assert len(re.findall(r"\bst\.global\S*\.v4\.\S*32", ptx)) == 4


def test_products_of_zeros_around_a_small_plane_are_left_out() -> None:
    problem, chosen = nhwc((1, 32, 7, 7), (32, 1, 5, 5)), config(threads_c=32, thread_y=7, thread_x=7)
    ptx = compiled(problem, chosen, SM_90)
    assert len(re.findall(r"\bfma\.rn\S*f32", ptx)) == products(problem.workload, chosen) == (7 * 5 - 2 * (2 + 1)) ** 2


@pytest.mark.parametrize("channels", [24, 58, 96, 116, 960, 1280])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_default_reads_whole_sectors(channels: int, dtype: str) -> None:
    problem = nhwc((32, channels, 14, 14), (channels, 1, 3, 3), dtype=dtype)
    chosen = depthwise_nhwc.default_config(problem, SM_90)
    assert chosen.channels * problem.workload.itemsize >= 32
    assert chosen.threads >= 32


def test_a_residual_of_an_open_plane_is_refused() -> None:
    known = nhwc((1, 8, 9, 9), (8, 1, 3, 3), residual=True)
    problem = msgspec.structs.replace(known, open_sizes=("height",))
    with pytest.raises(InvalidArgumentError, match="takes no residual where a height or a width is left open"):
        template_for(problem, SM_90)
    assert algorithms_for(msgspec.structs.replace(problem, open_sizes=("batch",)), SM_90) == ("depthwise_nhwc",)


def test_nan_and_infinity_stay_in_their_windows() -> None:
    """Elements that are read beside the input instead of zeros are left out, whatever they are."""
    problem = nhwc((1, 8, 6, 6), (8, 1, 3, 3))
    operands = random_operands(problem.workload)
    operands["x"][0, 0, 0, 0], operands["x"][0, -1, -1, 1] = np.nan, np.inf
    run_twin(problem, None, **operands)
