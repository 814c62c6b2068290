"""The space of configurations of a schedule: the values of each knob, and the conditions for a legal combination."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from .combinations import passing

C = TypeVar("C")


@dataclass(frozen=True)
class Space(Generic[C]):
    """The combinations of knob values that are worth a trial, and the test of whether any configuration is legal.

    `constraints` are what a configuration must meet; `heuristics` and `promising` say which of the legal ones are worth
    building. The first two are named, so that what prunes a configuration can be told. Each is a test by itself, asked
    of any combination of the values. The default configuration always belongs to the space.
    """

    default: C
    least: C
    """The least value that each knob may have; the values of the space may begin above it."""
    knobs: Mapping[str, tuple[Any, ...]]
    constraints: Mapping[str, Callable[[C], bool]]
    heuristics: Mapping[str, Callable[[C], bool]]
    promising: Callable[[C], bool] | None = None
    """The test by a model of the time, which is asked last, as it takes longest; None where there is no such model."""

    def violated(self, config: C) -> list[str]:
        """Return the names of the constraints that a configuration breaks; empty for a legal one.

        A knob of another type, or below its least value, makes it "malformed", and nothing else is looked at.
        """
        for name, least in vars(self.least).items():
            value = getattr(config, name)
            if type(value) is not type(least) or value < least:
                return ["malformed"]
        return [name for name, holds in self.constraints.items() if not holds(config)]

    @cached_property
    def configs(self) -> tuple[C, ...]:
        """Every configuration of the space: the default, then the others, the last knob varying fastest."""
        by_model = () if self.promising is None else (self.promising,)
        tests = (*self.heuristics.values(), *self.constraints.values())
        found = passing(self.default, self.knobs, tests, by_model)
        return self.default, *(config for config in found if config != self.default)

    @cached_property
    def index(self) -> Mapping[C, int]:
        """The place of each configuration in `configs`."""
        return {config: number for number, config in enumerate(self.configs)}

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, config: object) -> bool:
        return config in self.index

    def __str__(self) -> str:
        knobs = [
            f"  {name}: {len(values)} values, {', '.join(map(str, values))}" for name, values in self.knobs.items()
        ]
        return "\n".join([f"space of {len(self)} configurations", *knobs])

    def number(self, config: C) -> int | None:
        """Return the place of a configuration in `configs`, which a log holds beside it; None for one outside."""
        return self.index.get(config)

    def values(self, config: C) -> Mapping[str, Any]:
        """Return the value of each knob in a configuration."""
        return vars(config)

    def config(self, values: Mapping[str, Any]) -> C:
        """Return the configuration with these values of the knobs."""
        return type(self.default)(**values)


def named(*checks: Callable[[C], bool]) -> dict[str, Callable[[C], bool]]:
    """Return the checks by their functions' names."""
    return {check.__name__: check for check in checks}


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def evenly(count: int, most: int) -> int:
    """Return how many of a count each part has, at most so many, if there are as few parts as can be, nearly alike."""
    return ceil_div(count, ceil_div(count, most))


def ceil_to(a: int, b: int) -> int:
    """Return a, rounded up to a multiple of b."""
    return ceil_div(a, b) * b


def divisors(n: int, at_most: int) -> tuple[int, ...]:
    """Return the divisors of n up to a bound, ascending."""
    return tuple(d for d in range(1, min(n, at_most) + 1) if n % d == 0)


def upto(limit: int, *values: int) -> set[int]:
    """Return the values that are at most a limit."""
    return {value for value in values if value <= limit}


def with_default(knobs: Mapping[str, Iterable[Any]], default: Any) -> dict[str, tuple[Any, ...]]:
    """Return the values of knobs, ascending, with those of the default configuration among them."""
    return {name: tuple(sorted({*values, getattr(default, name)})) for name, values in knobs.items()}


def tile_sizes(extent: int) -> tuple[int, ...]:
    """Return tile sizes for an extent, ascending: its even parts, and the powers of two below it."""
    even = {ceil_div(extent, parts) for parts in range(1, 9)}
    return tuple(sorted(even | {2**exponent for exponent in range(extent.bit_length()) if 2**exponent < extent}))


def wasted(extent: int, tile: int) -> float:
    """Return the number of elements that whole tiles compute, as a multiple of the extent."""
    return ceil_div(extent, tile) * tile / extent
