"""The space of configurations of a schedule: the values of each knob, and what makes a combination legal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, TypeVar

C = TypeVar("C")


@dataclass(frozen=True)
class Space(Generic[C]):
    """Every combination of knob values that meets the constraints.

    `constraints` are named, so that what prunes a configuration can be counted and told; they are checked before
    anything is built.
    """

    config_type: type[C]
    knobs: Mapping[str, tuple[Any, ...]]
    constraints: Mapping[str, Callable[[C], bool]]

    def violated(self, config: C) -> list[str]:
        """Names of the constraints that a configuration breaks; empty for a legal one.

        A knob of another type, or below its least value, makes it "malformed", and nothing else is looked at.
        """
        for name, values in self.knobs.items():
            value = getattr(config, name)
            if type(value) is not type(values[0]) or value < min(values):
                return ["malformed"]
        return [name for name, holds in self.constraints.items() if not holds(config)]

    def __iter__(self) -> Iterator[C]:
        """The legal configurations, the last knob varying fastest."""
        for values in product(*self.knobs.values()):
            config = self.config_type(*values)
            if not self.violated(config):
                yield config


def including(knobs: Mapping[str, tuple[Any, ...]], config: object) -> dict[str, tuple[Any, ...]]:
    """The knobs, with the values that a configuration has among theirs."""
    return {name: tuple(sorted({*values, getattr(config, name)})) for name, values in knobs.items()}


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def divisors(n: int, at_most: int) -> tuple[int, ...]:
    """The divisors of n up to a bound, ascending."""
    return tuple(d for d in range(1, min(n, at_most) + 1) if n % d == 0)


def tile_sizes(extent: int) -> tuple[int, ...]:
    """Tile sizes for an extent, ascending: its even parts, and the powers of two below it."""
    even = {ceil_div(extent, parts) for parts in range(1, 9)}
    return tuple(sorted(even | {2**exponent for exponent in range(extent.bit_length()) if 2**exponent < extent}))


def wasted(extent: int, tile: int) -> float:
    """What whole tiles compute, in parts of the extent."""
    return ceil_div(extent, tile) * tile / extent
