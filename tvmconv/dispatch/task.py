"""What a configuration is chosen for: a problem on a target, with what makes its kernels and the space of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from ..problem import Problem
from ..schedules.template import Template
from .call import Call
from .registry import template_name, to_message

if TYPE_CHECKING:
    import tvm

Value = bool | int | float | str | tuple[int | str, ...] | None
"""What a log has of a knob."""

Entity = tuple[tuple[str, str, Value], ...]
"""The knobs of a configuration in a log: name, kind and value of each."""


class SearchSpace(Protocol):
    """The configurations that a tuner chooses from: a `Space` of tvmconv's templates, or a `ConfigSpace`."""

    @property
    def default(self) -> Any: ...

    @property
    def knobs(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of each knob."""
        ...

    @property
    def configs(self) -> tuple[Any, ...]:
        """What is worth a trial, the default first."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, config: object) -> bool: ...

    def number(self, config: Any) -> int | None:
        """What a log has beside a configuration; 0 for the default."""
        ...

    def values(self, config: Any) -> Mapping[str, Any]:
        """The value of each knob in a configuration."""
        ...

    def config(self, values: Mapping[str, Any]) -> Any:
        """The configuration with these values."""
        ...


class Maker(NamedTuple):
    """What makes kernels of knobs, as far as records have to fit it."""

    name: str
    version: int
    accepts: Callable[[Mapping[str, Value]], bool]
    """Whether knobs of a record are those that it has."""
    message: str
    """What tells another process of it."""

    @classmethod
    def of(cls, template: Template) -> Maker:
        """What one of the registered templates makes."""

        def accepts(knobs: Mapping[str, Value]) -> bool:
            try:
                config = msgspec.convert(knobs, template.Config)
            except msgspec.ValidationError:
                return False
            return bool(knobs.keys() <= vars(config).keys())

        name = template_name(template)
        return cls(name, template.VERSION, accepts, to_message(name))


class Task(ABC):
    """A problem to tune for a target; `create` and the functions whose names begin with `extract` make them."""

    target: tvm.target.Target
    weight: int
    """How many layers of the model compute this."""

    @property
    @abstractmethod
    def problem(self) -> Problem | Call:
        """What the kernel is for."""

    @property
    @abstractmethod
    def maker(self) -> Maker:
        """What makes the kernel."""

    @property
    @abstractmethod
    def space(self) -> SearchSpace:
        """The configurations to choose from; the first is the default."""

    @property
    def config_space(self) -> SearchSpace:
        """AutoTVM's name of `space`."""
        return self.space

    @property
    def name(self) -> str:
        """The template's name, such as "cuda/depthwise"."""
        return self.maker.name

    @property
    @abstractmethod
    def flop(self) -> float:
        """Floating-point operations of a call."""

    @abstractmethod
    def entity(self, config: Any) -> Entity:
        """A configuration as a log has it."""

    def knobs(self, config: Any) -> dict[str, Value]:
        """The values of the knobs that a log has of a configuration."""
        return {name: value for name, _, value in self.entity(config)}

    @abstractmethod
    def config(self, knobs: Mapping[str, Value]) -> Any:
        """The configuration with knobs that a log has, and that the maker accepts."""

    @abstractmethod
    def features(self, config: Any) -> tuple[float, ...]:
        """What the cost model sees of a configuration: a number for each knob, then others; none is negative."""

    @abstractmethod
    def for_problem(self, problem: Any) -> Task:
        """The same task for another problem of its kind."""
