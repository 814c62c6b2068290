"""The error for indices out of range, which a network's checks find in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmconv.problem.errors import InvalidArgumentError

LARGEST = 2**62 - 1
"""The largest distance from an end of an axis that an error tells; it stands for larger ones, too."""


def require_in_range(checks: Sequence[str], numbers: Sequence[int], sizes: Mapping[str, int]) -> None:
    """Raise `InvalidArgumentError` if a check found an index out of range.

    `checks` says what each of them is of; its number is -1 if all indices are in range, twice an index that is not, or
    -1 - twice a negative one. `sizes` are the values of the call's open sizes.
    """
    for text, number in zip(checks, numbers, strict=True):
        if number >= 0:
            index = -1 - number // 2 if number % 2 else number // 2
            values = "".join(f"; {name} is {value}" for name, value in sizes.items())
            raise InvalidArgumentError("index", index, f"one in range: {text}{values}")
