"""The section for any other JSON that a command has printed: its figures, and a table for each list of records."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload

from .markup import Cell, Markup, facts, join, section, table, tag
from .suites import relative_bars

Figures = dict[str, Any]
TIMING = {"median", "low", "high"}
NAMES = ("name", "network", "mode", "kind", "dtype", "batch")
"""The fields that name a record in a chart."""


def documents(title: str, found: list[Figures]) -> Markup:
    """Return the section of documents; lines with the same names are one table."""
    if len(found) == 1:
        return section(title, *_document(found[0]))
    alike: dict[tuple[str, ...], list[Figures]] = {}
    for line in found:
        alike.setdefault(tuple(line), []).append(line)
    return section(title, *(_records(lines) for lines in alike.values()))


def _document(document: Figures) -> list[Markup]:
    parts: list[Markup] = []
    single: list[tuple[str, Cell]] = []
    for name, value in document.items():
        if not _is_records(value):
            single += _flat(name, value).items()
        else:
            parts += [tag("h3", name.replace("_", " ")), _records(value)]
    return [facts(single), *parts]


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _records(records: list[Figures]) -> Markup:
    """Return a table of records, a column for each figure that one of them has, below bars of relative times."""
    rows = [
        {key: cell for name, value in record.items() for key, cell in _flat(name, value).items()} for record in records
    ]
    headers = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name) for name in headers] for row in rows]
    chart = relative_bars(_times(records))
    drawn = [tag("div", chart.figure(), class_="charts")] if chart else []
    return join([*drawn, table([header.replace("_", " ") for header in headers], cells)])


def _times(records: list[Figures]) -> dict[str, dict[str, float]]:
    """Return the seconds of contenders by the names of those records that have them."""
    found = {}
    for record in records:
        times = record.get("times")
        if isinstance(times, dict) and times and all(map(_is_timing, times.values())):
            label = " ".join(str(record[key]) for key in NAMES if record.get(key))
            found[label] = {name: float(each["median"]) for name, each in times.items()}
    return found


def _is_timing(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= TIMING and isinstance(value["median"], float)


def _flat(name: str, value: Any) -> dict[str, Cell]:
    """Return a value as cells by name: a dictionary of figures gets a cell for each, one of settings a single cell."""
    if isinstance(value, dict):
        if (workload := _workload(value)) is not None:
            return {name: str(workload)}
        if _is_timing(value):
            return {f"{name}, µs": 1e6 * value["median"]}
        if len(value) > 3 and not any(isinstance(part, dict) for part in value.values()):
            return {name: ", ".join(f"{key}={_text(part)}" for key, part in value.items())}
        return {key: cell for part, inner in value.items() for key, cell in _flat(f"{name} {part}", inner).items()}
    return {name: value if value is None or isinstance(value, str | int | float) else _text(value)}


def _workload(value: Figures) -> ConvWorkload | None:
    try:
        return msgspec.convert(value, ConvWorkload) if "in_channels" in value else None
    except (msgspec.ValidationError, InvalidArgumentError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
