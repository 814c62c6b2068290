"""Columns of the tables of docs/benchmarks.md, each with the number that it takes from a row of a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from statistics import geometric_mean
from typing import Any

from measured import OURS, Row, median, ran

SPARSITIES = tuple(step / 10 for step in range(10))
"""The shares of zeros in figure 11 of the sparse code-generation paper."""


class Estimate(float):
    """A number that was not measured but follows from a formula; it is shown in parentheses."""


def three_digits(value: float) -> str:
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def whole(value: float) -> str:
    return f"({value:,.0f})" if isinstance(value, Estimate) else f"{value:,.0f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f}"


def tenths(value: float) -> str:
    return f"{value:.1f}"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    value: Callable[[Row], float | str | None]
    """A function that takes the row of the column's file; None leaves the cell empty."""
    form: Callable[[float], str] = ratio
    last: Callable[[Sequence[float]], float] | None = None
    """A function that sums up all values in the last line, such as their geometric mean."""
    file: int = 0


def times(title: str, *peers: str, over: Sequence[str] = (OURS,), **more: Any) -> Column:
    """Return a column of times of the fastest of the peers, relative to the fastest of tvmconv's, or of others."""

    def value(row: Row) -> float | None:
        return median(row, *peers) / median(row, *over) if ran(row, *peers) and ran(row, *over) else None

    return Column(title, value, **{"last": geometric_mean, **more})


def all_times(peers: Mapping[str, str], **more: Any) -> list[Column]:
    """Return a column of relative times for each peer, by its title."""
    return [times(title, peer, **more) for title, peer in peers.items()]


def duration(title: str, *contenders: str, unit: float = 1e-6, **more: Any) -> Column:
    """Return a column of times of the fastest of the contenders, in a unit that is given in seconds."""

    def value(row: Row) -> float | None:
        return median(row, *contenders) / unit if ran(row, *contenders) else None

    return Column(title, value, three_digits, **more)


def of(field: str, title: str, contender: str, form: Callable[[float], str] = whole, unit: float = 1) -> Column:
    """Return a column of a field that has numbers by contender, which older files may lack."""

    def value(row: Row) -> float | None:
        number = (row.get(field) or {}).get(contender)
        return None if number is None else number / unit

    return Column(title, value, form)


def crossover(rows: Mapping[float, Row], peer: str) -> float | None:
    """Return the share of zeros from which tvmconv is faster than a peer; None where it is slower at the largest.

    Rows are by their shares of zeros.
    """
    found = None
    for share in sorted(rows, reverse=True):
        if not (ran(rows[share], OURS) and ran(rows[share], peer)):
            return found
        if median(rows[share], peer) <= median(rows[share], OURS):
            return found
        found = share
    return found
