"""The model of a GPU: what its clocks depend on, and the counts of templates that it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tvmconv.dispatch import template_named
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.cuda import MODULES
from tvmconv.schedules.cuda.model import Counts, clocks, in_runs
from tvmconv.schedules.cuda.model.rates import Rates
from tvmconv.schedules.cuda.template import GpuTemplate
from tvmconv.schedules.fitted import UNFITTED, Factors, p_norm
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import H100

RATES = Rates(
    launch=2000,
    further=1000,
    block=10,
    issue=4,
    access=1,
    mma=1,
    l2=32,
    latency=500,
    turn=4,
    power=4,
)
COUNTS = Counts(blocks=1320, resident=4, warps=8, issued=1000, moved=1e6, serial=500)
COUNTING = [name for name in MODULES if type(template_named(f"cuda/{name}")).counts is not GpuTemplate.counts]


def clocks_of(rates: Rates = RATES, factors: Factors = UNFITTED, **counts: float) -> float:
    return clocks(replace(COUNTS, **counts), H100, rates, factors)


def test_clocks_of_a_kernel_that_one_unit_bounds() -> None:
    """Ten blocks of a multiprocessor begin 8000 instructions of warps each, four a clock."""
    units = clocks_of(moved=0, arrivals=0, serial=0)
    assert units == pytest.approx(2000 + 10 * 8000 / 4 + 10 * 10)


def test_clocks_of_a_kernel_that_memory_bounds() -> None:
    moved = 1e9
    assert clocks_of(moved=moved) == pytest.approx(2000 + moved / H100.bytes_per_clock, rel=1e-3)


def test_clocks_of_blocks_that_wait() -> None:
    """Ten blocks of a multiprocessor, two at a time, wait five times for a memory access and 500 instructions."""
    waiting = clocks_of(resident=2, issued=0, moved=0, arrivals=3)
    assert waiting == pytest.approx(2000 + 5 * (3 * 500 + 500 * 4) + 10 * 10)


@pytest.mark.parametrize(
    "more",
    [
        {"blocks": 1453},
        {"warps": 9},
        {"issued": 1100},
        {"moved": 1e8},
        {"fetched": 1e5},
        {"accessed": 5000},
        {"multiplied": 5000},
        {"arrivals": 9},
        {"serial": 5000},
        {"kernels": 2},
        {"kernels": 2, "beside": 1e6},
    ],
    ids=str,
)
def test_more_work_takes_longer(more: dict[str, float]) -> None:
    fewer = {"kernels": 2} if "beside" in more else {}
    assert clocks_of(**more) > clocks_of(**fewer)


def test_more_blocks_at_once_hide_more() -> None:
    assert clocks_of(resident=2) > clocks_of(resident=4)


def test_factors_are_of_instructions_and_of_waiting() -> None:
    assert clocks_of(factors=Factors(issued=2.0)) == pytest.approx(clocks_of(issued=2000))
    assert clocks_of(factors=Factors(waiting=2.0)) == pytest.approx(clocks_of(arrivals=2, serial=1000))


def test_arrays_are_counted_one_by_one() -> None:
    blocks, resident = np.array([1.0, 1320.0, 5000.0]), np.array([4.0, 1.0, 20.0])
    arrays: Any = clocks_of(blocks=blocks, resident=resident)  # type: ignore[arg-type]
    expected = [clocks_of(blocks=int(one), resident=int(other)) for one, other in zip(blocks, resident, strict=True)]
    assert arrays == pytest.approx(expected)


def test_the_norm_of_bounds() -> None:
    assert p_norm(2.0, 3.0, 4.0, 0.0) == pytest.approx(5.0)


@pytest.mark.parametrize(("run", "expected"), [(32, 1 + 20 / 32), (16, 2 * (1 + 20 / 16)), (1024, 1 + 20 / 1024)])
def test_short_runs_move_more(run: int, expected: float) -> None:
    assert in_runs(run) == pytest.approx(expected)


@pytest.mark.parametrize("name", COUNTING)
def test_what_a_template_counts(name: str) -> None:
    """Counts of the examples are positive, and an image more moves more bytes in no fewer clocks."""
    template, target = template_named(f"cuda/{name}"), resolve_target({"kind": "cuda", "arch": "sm_90"})
    assert isinstance(template, GpuTemplate)
    for problem in template.examples:
        config = template.default_config(problem, target)
        counts = template.counts(problem, config, target)
        assert min(counts.blocks, counts.resident, counts.warps, counts.issued, counts.serial, counts.kernels) > 0
        assert counts.resident == template.resident_blocks(problem, config, H100) or name == "attention"
        assert template.estimate(problem, config, target) > 0


@pytest.mark.parametrize(("name", "layout"), [("input_gradient", "NCHW"), ("input_gradient_nhwc", "NHWC")])
def test_a_default_is_the_cheapest_of_what_is_tried(name: str, layout: str) -> None:
    template, target = template_named(f"cuda/{name}"), resolve_target({"kind": "cuda", "arch": "sm_90"})
    assert isinstance(template, GpuTemplate)
    workload = ConvWorkload.depthwise((64, 512, 28, 28), (512, 1, 5, 5), stride=2)
    problem = Problem(workload.in_nhwc() if layout == "NHWC" else workload, direction="input_gradient")
    default = template.default_config(problem, target)
    legal = [*template.legal(template.candidates(problem, target), problem, target)]
    assert default in legal
    assert template.estimate(problem, default, target) == min(
        template.estimate(problem, each, target) for each in legal
    )
