"""A template for 1x1 depthwise convolutions on a CPU that is registered by tests: a loop over rows, and one knob."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.schedules.space import Space
from tvmconv.schedules.template import Layouts

VERSION = 3

LAYOUTS = Layouts()

OPEN_SIZES: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    """The knob."""

    parallel: bool
    """Spread the channels over the threads of the machine."""


LEAST = Config(parallel=False)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take depthwise convolutions with 1x1 kernels."""
    return None if problem.is_depthwise and problem.workload.kernel == (1, 1) else "is for depthwise 1x1 kernels"


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return both configurations."""
    return Space(default_config(problem, target), LEAST, {"parallel": (False, True)}, {}, {})


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the configuration for one thread."""
    return LEAST


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return a cycle, which is less than any other template takes."""
    return 1.0


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return the number of tasks."""
    return {"tasks": problem.workload.batch}


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration for one thread."""
    return {"threads": LEAST}


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Return the computation with a parallel loop over images, or none."""
    sch = Schedule(te.create_prim_func(compute.depthwise(problem.workload, (1, 1))))
    if config.parallel:
        sch.parallel(sch.get_loops(sch.get_sblock("output"))[0])
    return sch
