"""Choice by name of the participants in a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tvmconv.problem.errors import InvalidArgumentError

T = TypeVar("T")


def choose(known: Mapping[str, T], names: Sequence[str], argument: str) -> dict[str, T]:
    """Return the known ones with these names, in their own order; all if no name is given."""
    for name in names:
        if name not in known:
            raise InvalidArgumentError(argument, name, f"some of {', '.join(known)}")
    return {name: each for name, each in known.items() if not names or name in names}


def split_names(text: str) -> list[str]:
    """Return the names in text such as "pytorch,tvm"."""
    return [name.strip() for name in text.split(",")]
