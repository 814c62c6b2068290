"""Columns of the tables of docs/benchmarks.md, each with the number that it takes from a row of a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import floor, log10
from statistics import geometric_mean
from typing import Any

import msgspec
from measured import OURS, Row, median, ran

from tvmconv.bench.report import Row as SuiteRow
from tvmconv.bench.report import crossover


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


def duration(title: str, *contenders: str, unit: float = 1e-6, **more: Any) -> Column:
    """Return a column of times of the fastest of the contenders, in a unit that is given in seconds."""

    def value(row: Row) -> float | None:
        return median(row, *contenders) / unit if ran(row, *contenders) else None

    return Column(title, value, three_digits, **more)


def spread(title: str, contender: str) -> Column:
    """Return a column of the fastest and the slowest round of a contender, in milliseconds."""

    def value(row: Row) -> str:
        timing = row["times"][contender]
        return f"{three_digits(1e3 * timing['low'])} to {three_digits(1e3 * timing['high'])}"

    return Column(title, value)


def busy(title: str, contender: str) -> Column:
    """Return a column of the milliseconds of a step in which a contender keeps the GPU busy."""
    return Column(title, lambda row: 1e3 * row["busy"][contender] if row.get("busy") else None, three_digits)


def over_sizes(title: str, peer: str, summary: Callable[[Sequence[float]], float]) -> Column:
    """Return a column for networks at several sizes: times of one build for all, relative to a peer's."""

    def value(sizes: Row) -> float | None:
        ratios = [median(row, "open") / median(row, peer) for row in sizes.values() if ran(row, peer)]
        return summary(ratios) if ratios else None

    return Column(title, value)


def memory_over_sizes(title: str, when: str) -> Column:
    """Return a column for networks at several sizes: the most megabytes taken since the network was loaded."""
    return Column(title, lambda sizes: max(row["memory"].get(when, 0) for row in sizes.values()) / 1e6, whole)


def of_all_sizes(title: str, value: Callable[[Row], float]) -> Column:
    """Return a column for networks at several sizes: the least and the largest of a row's numbers."""

    def both(sizes: Row) -> str:
        numbers = [value(row) for row in sizes.values()]
        least, largest = three_digits(min(numbers)), three_digits(max(numbers))
        return least if least == largest else f"{least} to {largest}"

    return Column(title, both)


def of_gradient(kind: str) -> list[Column]:
    """Return the columns of a convolution, or of one of its gradients: its time, and those of PyTorch and a copy."""
    columns = [
        duration(f"{kind}, µs", OURS),
        times("times PyTorch", "pytorch"),
        times("times copy", OURS, over=["copy"]),
    ]
    return [replace(column, value=partial(_of_kind, kind, column.value)) for column in columns]


def _of_kind(kind: str, value: Callable[[Row], float | str | None], rows: Row) -> float | str | None:
    """Return the value of the row of a kind, if there is one."""
    return value(rows[kind]) if kind in rows else None


def between(row: Row) -> list[Row]:
    """Return the functions of a network that are neither convolutions nor products."""
    return [each for each in row["kernels"] if "bytes" in each]


def kernels_time(row: Row) -> float:
    return sum(float(each["us"]) for each in row["kernels"])


def copies(functions: Sequence[Row]) -> float:
    """Return how many times as long as copies of their bytes functions take."""
    return sum(float(each["us"]) for each in functions) / sum(float(each["copy_us"]) for each in functions)


def share_above(limit: float) -> Callable[[Row], float]:
    """Return a function for the share of a network's time in functions between convolutions beyond so many copies."""

    def value(row: Row) -> float:
        return sum(each["us"] for each in between(row) if copies([each]) > limit) / kernels_time(row)

    return value


def slowest(row: Row) -> str | None:
    """Return how many copies the slowest function takes, and its name and share, of those with a hundredth of time."""
    total = kernels_time(row)
    found = max(
        (each for each in between(row) if each["us"] > total / 100), key=lambda each: copies([each]), default=None
    )
    return found and f"{copies([found]):.2f} (`{found['name']}`, {found['us'] / total:.0%})"


def extreme(title: str, name: str) -> Column:
    """Return a column of milliseconds of the fastest or the slowest round."""
    return Column(title, lambda row: 1e3 * row["times"][OURS][name], three_digits)


def of(field: str, title: str, contender: str, form: Callable[[float], str] = whole, unit: float = 1) -> Column:
    """Return a column of a field that has numbers by contender, which older files may lack."""

    def value(row: Row) -> float | None:
        number = row.get(field, {}).get(contender)
        return None if number is None else number / unit

    return Column(title, value, form)


def rate(title: str, unit: float) -> Column:
    """Return a column of floating-point operations per second, in a unit."""
    return Column(title, lambda row: row["flops"] / median(row, OURS) / unit, three_digits)


def share_without(name: str) -> Column:
    """Return a column of the share of its speed that a kernel has without one of its optimizations."""

    def value(row: Row) -> float | None:
        return row["time"]["median"] / row["without"][name]["time"]["median"] if name in row["without"] else None

    return Column(name, value, percent, geometric_mean)


def memory(title: str, contender: str) -> Column:
    """Return a column of megabytes beside operands and output; by formula for im2col where it found no room."""

    def value(row: Row) -> float | None:
        measured, formulas = row["memory"]["measured"], row["memory"]["formulas"]
        if contender in measured:
            return float(measured[contender] / 1e6)
        return Estimate(formulas["im2col"] / 1e6) if contender == "im2col-gemm" else None

    return Column(title, value, whole, sum)


def code(title: str, name: str, unit: float = 1) -> Column:
    return Column(title, lambda row: row["code"][name] / unit, whole)


def errors(title: str, dtype: str, contender: str) -> Column:
    """Return a column of the largest error of a contender in a type, and the root mean square; † breaks the promise."""

    def value(rows: Row) -> str | None:
        row = rows.get(dtype, {"errors": {}})
        if (found := row["errors"].get(contender)) is None:
            return None
        texts = ["not finite" if found[key] is None else three_digits(found[key]) for key in ("largest", "rms")]
        return " / ".join(texts) + " †" * (contender in row["broken"])

    return Column(title, value)


def zeros(share: float) -> Column:
    """Return a column of the times of dense cuDNN relative to tvmconv's with that share of zeros."""
    column = times(f"{share:.0%}", "pytorch", last=None)
    return Column(column.title, lambda rows: column.value(rows[share]) if share in rows else None)


def pays(title: str, peer: str) -> Column:
    """Return a column of the share of zeros from which tvmconv is faster than a peer."""

    def value(rows: Row) -> str | None:
        found = crossover([msgspec.convert(row, SuiteRow) for row in rows.values()], peer)
        if found is None:
            return None
        return f"{found:.0%} or less" if found == min(rows) > 0 else f"{found:.0%}"

    return Column(title, value)


def trials(title: str, tuner: str) -> Column:
    return Column(title, lambda rows: f"{rows[tuner]['median']:g}")
