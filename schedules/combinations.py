"""The listing of a space: the combinations of knob values that pass all tests, of which a few in a thousand do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

C = TypeVar("C")

Test = Callable[[C], bool]


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
    place = {name: number for number, name in enumerate(names)}
    trial, values, read = _recorder(default, knobs)
    values.update({name: several[0] for name, several in knobs.items()})
    chosen = [0] * count
    passed: list[int | None] = [None] * len(tests)  # the last knob that each test has read, where it passes
    while True:
        change = count - 1
        for number, test in enumerate(tests):
            if passed[number] is None:
                read.clear()
                holds, last = test(trial), max(map(place.__getitem__, read), default=-1)
                if not holds:
                    change = last
                    break
                passed[number] = last
        else:
            yield {**values}
        while change >= 0 and chosen[change] + 1 == len(choices[change]):
            change -= 1
        if change < 0:
            return
        chosen[change:] = [chosen[change] + 1, *[0] * (count - change - 1)]
        for number in range(change, count):
            values[names[number]] = choices[number][chosen[number]]
        passed = [None if last is None or last >= change else last for last in passed]


def _reads_of(test: Test[C], config: C, knobs: Mapping[str, Sequence[Any]]) -> set[str]:
    """Return the knobs that a test reads from a configuration."""
    trial, _, read = _recorder(config, knobs)
    test(trial)
    return read


def _recorder(config: C, knobs: Mapping[str, Sequence[Any]]) -> tuple[C, dict[str, Any], set[str]]:
    """Return a copy of a configuration, its values, which may be changed, and the names of knobs that are read from it.

    Who asks for all its values at once has read them all.
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
