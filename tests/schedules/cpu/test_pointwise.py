"""The CPU schedule of 1x1 convolutions whose vectors are pixels, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import tvm

from tests.schedules.kernels_here import run
from tests.schedules.spaces import check_space, check_whole_space
from tvmconv import ConvWorkload
from tvmconv.dispatch import template_for, templates_for
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.schedules.cpu.direct import template as direct
from tvmconv.schedules.cpu.pointwise import template as pointwise
from tvmconv.targets import resolve_target

CPU = resolve_target("llvm")


def layer(channels: int, size: tuple[int, int], outputs: int, groups: int = 1, **options: Any) -> ConvWorkload:
    batch = options.pop("batch", 1)
    shapes = (batch, groups * channels, *size), (groups * outputs, channels, 1, 1)
    return ConvWorkload.conv2d(*shapes, groups=groups, **options)


WORKLOADS = {
    "whole-vectors": layer(8, (12, 16), 12, scale=True, shift=True, activation="relu"),
    "whole-vectors-odd-tiles": layer(8, (16, 17), 10, batch=3),
    "ragged-plane": layer(5, (14, 14), 7, shift=True, residual=True, activation="relu6"),
    "little-more-than-a-vector": layer(6, (1, 17), 20, batch=2),
    "a-vector": layer(3, (4, 4), 1),
    "ragged-groups": layer(4, (9, 10), 7, groups=3, scale=True, residual=True),
    **{dtype: layer(9, (7, 7), 6, dtype=dtype, shift=True, batch=2) for dtype in NARROW},
    "threads": layer(40, (15, 23), 60, shift=True),
}
by_name = pytest.mark.parametrize("name", WORKLOADS)


@by_name
def test_default_configuration(name: str) -> None:
    run("pointwise", WORKLOADS[name])


@by_name
def test_space_begins_with_the_default_and_is_legal(name: str) -> None:
    workload = WORKLOADS[name]
    space = pointwise.space(Problem(workload), CPU)
    check_space(space, pointwise.default_config(Problem(workload), CPU))
    check_whole_space(space)
    assert "one_vector" in space.violated(replace(space.default, vector=2 * prod(workload.output_size)))


@pytest.mark.parametrize("mcpu", ["haswell", "x86-64", "znver5"])
def test_registers_hold_the_default_tile(mcpu: str) -> None:
    """A tile's sums, its vectors of pixels and a weight fit; the sums are enough to keep the units busy."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu})
    registers, lanes = {"haswell": (16, 8), "x86-64": (16, 4), "znver5": (32, 16)}[mcpu]
    for workload in WORKLOADS.values():
        space = pointwise.space(Problem(workload), target)
        config = space.default
        assert space.violated(config) == []
        assert config.vector == lanes
        assert config.vectors * (config.block + 1) + 1 <= registers
        assert config.vectors * config.block >= 8 or workload.out_channels < 8 * workload.groups


AVX512 = resolve_target({"kind": "llvm", "mcpu": "znver5"})


def test_taken_where_sums_are_short() -> None:
    """The shorter the sums, the larger the share of time for transposing their results."""
    assert template_for(Problem(layer(16, (112, 112), 96)), AVX512) is pointwise
    assert template_for(Problem(layer(64, (56, 56), 256, residual=True)), AVX512) is pointwise
    assert template_for(Problem(layer(1024, (14, 14), 256)), AVX512) is direct
    assert template_for(Problem(layer(960, (7, 7), 160)), AVX512) is direct


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (layer(8, (3, 5), 8), CPU),
        (ConvWorkload.conv2d((1, 8, 16, 16), (8, 8, 1, 1), stride=2), CPU),
        (ConvWorkload.conv2d((1, 8, 16, 16), (8, 8, 1, 1), padding=1), CPU),
        (ConvWorkload.conv2d((1, 8, 16, 16), (8, 8, 3, 1)), CPU),
        (layer(8, (16, 16), 8), resolve_target({"kind": "cuda", "arch": "sm_90"})),
    ],
    ids=["plane-less-than-a-vector", "stride", "padding", "kernel", "cuda"],
)
def test_not_for_anything_else(workload: ConvWorkload, target: tvm.target.Target) -> None:
    assert pointwise not in templates_for(Problem(workload), target)
