"""The equipment that templates for CPUs share: the space, and the test whether threads are worth while."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import tvm

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import cpu_of

from ..estimated import EstimatedTemplate
from ..space import Space
from .machine import PARALLEL_FLOPS
from .model import Counts, clocks
from .model.rates import factors_of, rates_of


class Tasks(Protocol):
    """A configuration of a kernel whose tasks may be spread over threads."""

    @property
    def parallel(self) -> bool:
        """True to spread the tasks over the threads of the machine."""


C = TypeVar("C", bound=Tasks)

Tests = Mapping[str, Callable[[C], bool]]
"""Tests of a configuration, by their names."""


class CpuTemplate(EstimatedTemplate[C]):
    """A template for CPUs, an implementation of `schedules.template.Template`.

    A subclass gives `obstacle`, the configurations that are tried (`candidates`, `knobs`, `constraints`,
    `heuristics`), `counts`, `features`, `ablations` and `schedule`. The default, the space and the estimate follow from
    these. A subclass whose estimate is by a model of its own overrides `estimate`.
    """

    @abstractmethod
    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        """Return the values of each knob in the space."""

    @abstractmethod
    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[C]:
        """Return the tests of a legal configuration that is worth a trial, by name."""

    def clocks(self, counts: Counts, target: tvm.target.Target) -> float:
        cpu = cpu_of(target)
        return clocks(counts, cpu, rates_of(cpu), factors_of(type(self).__module__))

    def least(self, problem: Problem, target: tvm.target.Target) -> C:
        """Return the configuration with the least value that each knob may have for a problem."""
        return self.LEAST

    def space(self, problem: Problem, target: tvm.target.Target) -> Space[C]:
        """Return the configurations that are worth a trial on a target."""
        return Space(
            self.default_config(problem, target),
            self.least(problem, target),
            self.knobs(problem, target),
            self.constraints(problem, target),
            self.heuristics(problem, target),
        )


def threads_for_work(workload: ConvWorkload) -> Callable[[Tasks], bool]:
    """Return the test that `parallel` is set exactly if a workload has enough work for threads."""
    has_work = workload.flops >= PARALLEL_FLOPS

    def threads_for_work(config: Tasks) -> bool:
        return config.parallel == has_work

    return threads_for_work
