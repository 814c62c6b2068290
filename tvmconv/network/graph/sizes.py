"""Sizes of a network's inputs that are known only when it runs: their names, their bounds, and a call's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, sqrt, trunc
from typing import Any

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.expressions import Expression

from .layers import TensorSpec

FORM = re.compile(r"\s*(?:(\d+)\s*<=\s*)?([A-Za-z_]\w*)\s*(?:<=\s*(\d+))?\s*")
"""The form of an open size in text, as in "n", "n<=64" and "2<=n<=64"."""


@dataclass(frozen=True)
class OpenSize:
    """A size of a network's inputs that is known only when it runs."""

    name: str
    least: int = 1
    """The smallest value. It is never 0: TVM leaves a sum without terms unwritten."""
    most: int | None = None
    """The largest value; None where nothing is known to limit it."""
    reason: str = ""
    """The origin of `most`, in words; empty where the model or the user set it."""

    def __str__(self) -> str:
        least = f"{self.least}<=" if self.least > 1 else ""
        return f"{least}{self.name}" + ("" if self.most is None else f"<={self.most}")

    @property
    def values(self) -> str:
        """The values that it may have, in words."""
        if self.most is None:
            return f"{self.name} of at least {self.least}"
        return f"{self.name} of {self.least} to {self.most}" + (f": {self.reason}" if self.reason else "")

    def within(self, other: OpenSize) -> OpenSize:
        """Return this size with the bounds of both."""
        most, reason = min(
            ((each.most, each.reason) for each in (self, other) if each.most is not None), default=(None, "")
        )
        return OpenSize(self.name, max(self.least, other.least), most, reason)


def open_size(text: str) -> OpenSize | None:
    """Return the size that a text such as "n", "n<=64" or "2<=n<=64" names; None for any other text."""
    found = FORM.fullmatch(text)
    if found is None:
        return None
    least, name, most = found.groups()
    size = OpenSize(name, int(least or 1), None if most is None else int(most))
    return size if 0 < size.least <= (size.most or size.least) else None


def merged(sizes: Iterable[OpenSize]) -> dict[str, OpenSize]:
    """Return the sizes by name, each with the bounds that all of its name have."""
    by_name: dict[str, OpenSize] = {}
    for size in sizes:
        by_name[size.name] = size.within(by_name.get(size.name, size))
    return by_name


@dataclass(frozen=True)
class Condition:
    """A condition that the open sizes of a call have to meet."""

    text: str
    """The condition as an expression of Python with the names of sizes, such as "height // 2 * 2 == height"."""
    reason: str
    """The operator that needs it, with its node, and why."""

    @property
    def expected(self) -> str:
        """The sizes that would be right, in words."""
        return f"sizes for which {self.text}: {self.reason}"


class Conditions:
    """The conditions that the open sizes of a call have to meet, beside their bounds."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        """Parse the conditions, which may come from a network's file; raise `InvalidArgumentError` for other text."""
        self.all = tuple(conditions)
        self._tests = [Expression(each.text, FUNCTIONS) for each in self.all]
        self._broken = lru_cache(maxsize=REMEMBERED)(lambda sizes: self.first_broken(dict(sizes)))

    def require(self, values: Mapping[str, int]) -> None:
        """Raise `InvalidArgumentError` for sizes of which one condition is not true."""
        if self.all and (broken := self._broken(tuple(values.items()))) is not None:
            raise InvalidArgumentError("sizes", dict(values), broken.expected)

    def first_broken(self, values: Mapping[str, int]) -> Condition | None:
        """Return the first condition that is not true of sizes by their names; None if all are."""
        for condition, test in zip(self.all, self._tests, strict=True):
            try:
                if test(values):
                    continue
            except ZeroDivisionError:  # a remainder by a size that is 0
                pass
            return condition
        return None


def names_in(conditions: Iterable[Condition]) -> set[str]:
    """Return the names of the sizes in some conditions."""
    return set().union(*(Expression(each.text, FUNCTIONS).names for each in conditions))


REMEMBERED = 64
"""The largest number of sets of sizes that a network remembers to meet its conditions, or not to."""


def _choice(test: bool, first: int, second: int) -> int:
    return first if test else second


def _cast(dtype: str, value: float) -> float:
    return float(value) if dtype.startswith("float") else int(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Cast": _cast,
    "Select": _choice,
    "ceil": ceil,
    "float64": float,
    "floor": floor,
    "if_then_else": _choice,
    "max": max,
    "min": min,
    "sqrt": sqrt,
    "trunc": trunc,
}
"""The functions in conditions, by their names; no size has one of these."""


def require_sizes(
    sizes: Mapping[str, OpenSize],
    conditions: Conditions,
    specs: Sequence[TensorSpec],
    shapes: Sequence[tuple[int, ...]],
) -> None:
    """Raise `InvalidArgumentError` unless the open sizes of a call's inputs agree and are what the network takes."""
    found: dict[str, tuple[int, str]] = {}
    for spec, shape in zip(specs, shapes, strict=True):
        for name, actual in zip(spec.shape, shape, strict=True):
            if not isinstance(name, str) or (size := sizes.get(name)) is None:
                continue
            value, whose = found.setdefault(name, (actual, spec.name))
            if actual != value:
                raise InvalidArgumentError(
                    spec.name, shape, f"the shape of {spec}, where {name} is {value} as in {whose}"
                )
            if actual < size.least or (size.most is not None and actual > size.most):
                raise InvalidArgumentError(spec.name, shape, f"the shape of {spec}, with {size.values}")
    if found:
        conditions.require({name: value for name, (value, _) in found.items()})
