"""Depthwise convolutions of planes of one row on CUDA: sequences, by vectors in strided parts of a thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.depthwise import ROWS, row
from tvmconv.dispatch import select
from tvmconv.lowering import build_function, lower
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise import template as depthwise
from tvmconv.schedules.cuda.depthwise.tiles import Config
from tvmconv.targets import cuda


def default(problem: Problem) -> Config:
    return depthwise.default_config(problem, SM_90)


LARGE = {name: row(4096, 2048, taps, dtype, batch=8) for name, taps, dtype in (
    ("4", 4, "float32"), ("4-half", 4, "float16"), ("31-bfloat16", 31, "bfloat16"), ("128", 128, "float32"),
)}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_cubin(name: str) -> None:
    """A thread has 16 outputs or a window that fits into registers, and loads and stores 16 bytes at once."""
    problem = LARGE[name]
    config, itemsize = default(problem), problem.workload.itemsize
    assert config.load * itemsize == config.store * itemsize == 16
    assert config.threads == 128
    kernel = build_function(lower(problem, select(problem, SM_90, config), SM_90, "kernel"), SM_90)
    source = str(kernel.executable.mod.imports[0].inspect_source())
    (found,) = cuda.kernel_resources(source, "sm_90")
    assert (found.spill_store_bytes, found.stack_bytes) == (0, 0)
    assert found.registers <= 64
    assert "*(uint4*)" in source or "*(float4*)" in source


def test_stores_wider_than_16_bytes_are_illegal() -> None:
    problem, _ = ROWS["vectors"]
    assert "whole_vectors" in depthwise.space(problem, SM_90).violated(replace(default(problem), thread_x=8, store=8))


@pytest.mark.parametrize("name", ["4", "4-half"])
def test_the_space_has_vectors_in_strided_parts(name: str) -> None:
    space, best = depthwise.space(LARGE[name], SM_90), default(LARGE[name])
    assert best in space
    assert {config.vthreads_x for config in space.configs if config.store == best.store} >= {1, 2, 4}
