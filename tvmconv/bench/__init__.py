"""Measuring of kernels beside their peers: suites of workloads, the peers, and timing that can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tvmconv.problem.errors import InvalidArgumentError

T = TypeVar("T")


def choose(known: Mapping[str, T], names: Sequence[str], argument: str) -> dict[str, T]:
    """Return the named participants of a benchmark, in the order of the participants; all if no name is passed."""
    for name in names:
        if name not in known:
            raise InvalidArgumentError(argument, name, f"some of {', '.join(known)}")
    return {name: each for name, each in known.items() if not names or name in names}
