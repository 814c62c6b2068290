"""Random choices that are the same on every machine and in every version of Python."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices that depend on the seed alone."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed).random  # the one function that no version of Python may change

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def uniform(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def logarithmic(self, low: int, high: int) -> int:
        return int(low * ((high + 1) / low) ** self._random())

    def of(self, values: Sequence[T]) -> T:
        return values[self.uniform(0, len(values) - 1)]

    def by_name(self, values: Sequence[T]) -> T:
        """Return one of several values, chosen by their texts: a further value changes only draws that return it."""
        number = self._random()
        return max(values, key=lambda value: sha256(f"{number} {value}".encode()).digest())

    def pair(self, low: int, high: int) -> tuple[int, int]:
        return self.uniform(low, high), self.uniform(low, high)
