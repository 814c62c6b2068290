"""Tasks: a problem on a target, with the template that makes its kernels and the space of its configurations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tvmconv.problem import Problem
from tvmconv.schedules.template import Template

from .call import Call
from .registry import template_name

if TYPE_CHECKING:
    import tvm

Value = bool | int | float | str | tuple[int | str, ...] | None
"""The value of a knob in a log."""

Entity = tuple[tuple[str, str, Value], ...]
"""The knobs of a configuration in a log: name, kind and value of each."""


class SearchSpace(Protocol):
    """The configurations that a tuner chooses from: a `Space` of tvmconv's templates, or a `ConfigSpace`."""

    @property
    def default(self) -> Any: ...

    @property
    def knobs(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of each knob, by name."""
        ...

    @property
    def configs(self) -> tuple[Any, ...]:
        """The configurations that are worth a trial, the default first."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, config: object) -> bool: ...

    def number(self, config: Any) -> int | None:
        """Return the number that a log holds beside a configuration; 0 for the default."""
        ...

    def values(self, config: Any) -> Mapping[str, Any]:
        """Return the value of each knob in a configuration."""
        ...

    def config(self, values: Mapping[str, Any]) -> Any:
        """Return the configuration with these values."""
        ...


class Maker(NamedTuple):
    """A maker of kernels from knobs, as far as records have to fit it."""

    name: str
    version: int
    accepts: Callable[[Mapping[str, Value]], bool]
    """A function that returns whether knobs of a record are those of the maker."""

    @classmethod
    def of(cls, template: Template) -> Maker:
        """Return the maker that is a registered template."""

        def accepts(knobs: Mapping[str, Value]) -> bool:
            try:
                config = msgspec.convert(knobs, template.Config)
            except msgspec.ValidationError:
                return False
            return bool(knobs.keys() <= vars(config).keys())

        return cls(template_name(template), template.VERSION, accepts)


class Task(ABC):
    """A problem to tune for a target; `create` and the functions whose names begin with `extract` make them."""

    target: tvm.target.Target
    weight: int
    """The number of layers of the model that compute this."""

    @property
    @abstractmethod
    def problem(self) -> Problem | Call:
        """The problem that the kernel solves."""

    @property
    @abstractmethod
    def maker(self) -> Maker:
        """The maker of the kernel."""

    @property
    def message(self) -> str:
        """The text from which another process gets the maker."""
        return self.name

    @property
    @abstractmethod
    def space(self) -> SearchSpace:
        """The configurations to choose from; the first is the default."""

    @property
    def config_space(self) -> SearchSpace:
        """The space under AutoTVM's name."""
        return self.space

    @property
    def name(self) -> str:
        """The template's name, such as "cuda/depthwise"."""
        return self.maker.name

    @property
    @abstractmethod
    def flop(self) -> float:
        """The floating-point operations of a call."""

    @abstractmethod
    def entity(self, config: Any) -> Entity:
        """Return a configuration as a log holds it."""

    def knobs(self, config: Any) -> dict[str, Value]:
        """Return the values of the knobs that a log holds for a configuration."""
        return {name: value for name, _, value in self.entity(config)}

    @abstractmethod
    def config(self, knobs: Mapping[str, Value]) -> Any:
        """Return the configuration with knobs that a log holds, and that the maker accepts."""

    @abstractmethod
    def features(self, config: Any) -> tuple[float, ...]:
        """Return numbers for the cost model: one for each knob, then others; none is negative."""

    @abstractmethod
    def for_problem(self, problem: Any) -> Task:
        """Return the same task for another problem of its kind."""
