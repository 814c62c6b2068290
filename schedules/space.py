"""The space of configurations of a schedule: the values of each knob, and the conditions for a legal combination.

A space lists the combinations that pass all tests, of which a few in a thousand do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

C = TypeVar("C")

Test = Callable[[C], bool]
"""A test of a configuration."""


@dataclass(frozen=True)
class Space(Generic[C]):
    """The combinations of knob values that are worth a trial, and the test of whether any configuration is legal.

    `constraints` are what a configuration must meet; `heuristics` and `promising` say which of the legal ones are worth
    building. The first two have names, which tell why a configuration is left out. Each is a separate test, asked of
    any combination of the values. The default configuration always belongs to the space.
    """

    default: C
    least: C
    """The least value that each knob may have; the values of the space may begin above it."""
    knobs: Mapping[str, tuple[Any, ...]]
    constraints: Mapping[str, Test[C]]
    heuristics: Mapping[str, Test[C]]
    promising: Test[C] | None = None
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
        """The index of each configuration in `configs`."""
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
        """Return the index of a configuration in `configs`, which logs store with it; None for one outside."""
        return self.index.get(config)

    def values(self, config: C) -> Mapping[str, Any]:
        """Return the value of each knob in a configuration."""
        return vars(config)

    def config(self, values: Mapping[str, Any]) -> C:
        """Return the configuration with these values of the knobs."""
        return type(self.default)(**values)


def named(*checks: Test[C]) -> dict[str, Test[C]]:
    """Return the checks by their functions' names."""
    return {check.__name__: check for check in checks}


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def evenly(count: int, limit: int) -> int:
    """Return the size of a part, if a count is cut into as few parts of at most `limit` as possible, nearly equal."""
    return ceil_div(count, ceil_div(count, limit))


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


def passing(
    default: C, knobs: Mapping[str, Sequence[Any]], tests: Sequence[Test[C]], costly: Sequence[Test[C]]
) -> list[C]:
    """Return the configurations that pass all tests, the last knob varying fastest; the costly ones are asked last.

    A test is asked in any order, of any combination, and has to be a function of the knobs that it reads from its
    argument, which keeps nothing: no cached properties.

    Knobs are set one after the other. Where a test fails, the knobs that it has read tell which combinations fail for
    the same reason, and these are passed over; where it passes, it is asked again when one of them has changed: so go
    backjumping and backmarking in P. Prosser, "Hybrid Algorithms for the Constraint Satisfaction Problem" (1993).
    """
    if not all(knobs.values()):
        return []
    read_by = [_reads_of(test, default, knobs) for test in tests]
    order = sorted(knobs, key=lambda name: -sum(name in read for read in read_by))  # what most tests read comes first
    last_read = [max(map(order.index, read), default=-1) for read in read_by]
    soonest_first = sorted(range(len(tests)), key=last_read.__getitem__)
    found = [
        *_search(default, {name: knobs[name] for name in order}, [*map(tests.__getitem__, soonest_first), *costly])
    ]
    rank = {name: {value: number for number, value in enumerate(values)} for name, values in knobs.items()}
    found.sort(key=lambda values: [rank[name][values[name]] for name in knobs])
    return [type(default)(**values) for values in found]


def _search(default: C, knobs: Mapping[str, Sequence[Any]], tests: Sequence[Test[C]]) -> Iterator[dict[str, Any]]:
    """Yield the values of all knobs that pass the tests, the last knob varying fastest."""
    names, choices, count = [*knobs], [*knobs.values()], len(knobs)
    number_of_knob = {name: number for number, name in enumerate(names)}
    trial, values, read = _recorder(default, knobs)
    values.update({name: several[0] for name, several in knobs.items()})
    chosen = [0] * count
    passed: list[int | None] = [None] * len(tests)  # the last knob that each test has read, where it passes
    while True:
        change = count - 1
        for number, test in enumerate(tests):
            if passed[number] is None:
                read.clear()
                holds, last_knob = test(trial), max(map(number_of_knob.__getitem__, read), default=-1)
                if not holds:
                    change = last_knob
                    break
                passed[number] = last_knob
        else:
            yield {**values}
        while change >= 0 and chosen[change] + 1 == len(choices[change]):
            change -= 1
        if change < 0:
            return
        chosen[change:] = [chosen[change] + 1, *[0] * (count - change - 1)]
        for number in range(change, count):
            values[names[number]] = choices[number][chosen[number]]
        passed = [None if last_knob is None or last_knob >= change else last_knob for last_knob in passed]


def _reads_of(test: Test[C], config: C, knobs: Mapping[str, Sequence[Any]]) -> set[str]:
    """Return the knobs that a test reads from a configuration."""
    trial, _, read = _recorder(config, knobs)
    test(trial)
    return read


def _recorder(config: C, knobs: Mapping[str, Sequence[Any]]) -> tuple[C, dict[str, Any], set[str]]:
    """Return a copy of a configuration, its values, which may be changed, and the names of knobs read from it.

    Asking for all values at once counts as reading all of them.
    """
    config_type, read, value_of = type(config), set[str](), object.__getattribute__

    class Recorder(config_type):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name in knobs:
                read.add(name)
            elif name == "__dict__":
                read.update(knobs)
            elif name == "__class__":  # it equals others of the same values
                return config_type
            return value_of(self, name)

    trial = Recorder(**vars(config))
    return trial, value_of(trial, "__dict__"), read
