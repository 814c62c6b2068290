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
from ..open_sizes import of_several_sizes
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
    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[C]:
        """Return the tests that a configuration must pass, by name."""

    @abstractmethod
    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[C]:
        """Return the tests of a legal configuration that is worth a trial, by name."""

    def counts(self, problem: Problem, config: C, target: tvm.target.Target) -> Counts:
        """Return the work of the kernel for a problem of known sizes, of which `estimate` makes clocks."""
        raise NotImplementedError(f"{type(self).__name__} does not count its work")

    def estimate(self, problem: Problem, config: C, target: tvm.target.Target) -> float:
        """Return the clocks that a call should take, by the counts of its work and the rates of the CPU.

        Where planes are open, it is the mean of planes of several sizes.
        """
        cpu, factors, problems = cpu_of(target), factors_of(type(self).__module__), of_several_sizes(problem)
        return sum(clocks(self.counts(each, config, target), cpu, rates_of(cpu), factors) for each in problems) / len(
            problems
        )

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
