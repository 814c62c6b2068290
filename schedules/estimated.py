"""Templates that choose a default configuration by an estimate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import tvm

from tvmconv.problem import FORWARD, Problem
from tvmconv.problem.errors import NoValidConfigurationError

from .open_sizes import of_several_sizes
from .template import Fused, Layouts, Template

C = TypeVar("C")


class EstimatedTemplate(Template, Generic[C]):
    """A template whose default is the legal one of some candidates with the least estimate."""

    VERSION: int = 1
    DIRECTIONS: ClassVar[tuple[str, ...]] = (FORWARD,)
    OPEN_SIZES: tuple[str, ...] = ()
    LAYOUTS: Layouts | Fused
    LEAST: C
    Config: type[Any]
    """The class of `LEAST`."""

    examples: ClassVar[tuple[Problem, ...]] = ()
    """Small problems, one of each kind that the template takes: tests compute them, and `tvmconv verify` does."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "LEAST"):
            cls.Config = type(cls.LEAST)

    @abstractmethod
    def constraints(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, Callable[[C], bool]]:
        """Return the tests that a configuration must pass, by name."""

    @abstractmethod
    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterable[C]:
        """Return the configurations that the default is chosen from; those that are not legal are left out.

        Of equal estimates, the first is chosen.
        """

    def counts(self, problem: Problem, config: C, target: tvm.target.Target) -> Any:
        """Return the work of the kernels for a problem of known sizes, of which `clocks` makes a time."""
        raise NotImplementedError(f"{type(self).__name__} does not count its work")

    @abstractmethod
    def clocks(self, counts: Any, target: tvm.target.Target) -> float:
        """Return the clocks that counted work takes, by the rates of the machine and the factors of the template."""

    def estimate(self, problem: Problem, config: C, target: tvm.target.Target) -> float:
        """Return the clocks that a call should take.

        Where planes are open, it is the mean of planes of several sizes.
        """
        problems = of_several_sizes(problem)
        return sum(self.clocks(self.counts(each, config, target), target) for each in problems) / len(problems)

    def legal(self, configs: Iterable[C], problem: Problem, target: tvm.target.Target) -> Iterator[C]:
        """Yield those of some configurations that pass all constraints."""
        tests = self.constraints(problem, target).values()
        return (config for config in configs if all(holds(config) for holds in tests))

    def is_legal(self, problem: Problem, config: C, target: tvm.target.Target) -> bool:
        """Return whether a configuration passes all constraints."""
        return any(True for _ in self.legal([config], problem, target))

    def default_config(self, problem: Problem, target: tvm.target.Target) -> C:
        """Return the legal configuration of the candidates with the least estimate.

        Raises `NoValidConfigurationError` where none is legal.
        """
        legal = self.legal(self.candidates(problem, target), problem, target)
        best = min(legal, key=lambda config: self.estimate(problem, config, target), default=None)
        if best is None:
            raise NoValidConfigurationError(f"{problem}: no configuration is legal on {target}")
        return best
