"""The gradients of a depthwise convolution on a CPU, by its input and by its weight."""

from __future__ import annotations

from typing import Any

import tvm

from tvmconv.problem import Problem
from tvmconv.targets.devices import TURNS, cpu_of

from ...space import ceil_div
from ..machine import PARALLEL_FLOPS

LANES = (4, 8, 16)
"""The numbers of lanes of a vector."""

SUM_BYTES = 4
"""The bytes of a staged element and of a sum, which are float32 numbers."""

MAX_UNROLLED = 2048
"""The most multiply-adds that follow each other without a loop: LLVM takes seconds for more."""


def obstacle(problem: Problem) -> str | None:
    """Return why a problem's workload has no gradient here; None for a depthwise one."""
    return None if problem.is_depthwise else "is for depthwise convolutions"


def is_parallel(problem: Problem) -> bool:
    """Return whether threads are worth while."""
    return problem.workload.flops >= PARALLEL_FLOPS


def least_tasks(problem: Problem, channels: int) -> int:
    """Return the least number of tasks of a channel that keeps all threads busy."""
    return ceil_div(TURNS, channels) if is_parallel(problem) else 1


def lanes_tried(target: tvm.target.Target) -> tuple[Any, ...]:
    """Return the lanes of vectors that the target has."""
    return tuple(lanes for lanes in LANES if lanes <= cpu_of(target).lanes)
