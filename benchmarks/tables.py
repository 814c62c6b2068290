"""Writing of the tables of docs/benchmarks.md from the JSON beside this file: python benchmarks/tables.py

A table stands between `<!-- table: KIND FILE... -->` and `<!-- end -->`; its kind is one of `KINDS`. Several files are
the same workloads measured in several ways, side by side. Files joined by "+" are one list of rows, in which a later
file replaces the rows that it has measured again.
"""

from __future__ import annotations

import re

from columns import Column
from kinds import KINDS, Kind
from measured import ROOT, Row, read

PAGE = ROOT / "docs" / "benchmarks.md"
MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def lines(kind: Kind, files: str) -> dict[str, Row]:
    """Return the rows by their names; later ones replace earlier ones."""
    if kind.grouped is None:
        return {kind.key(row): row for row in read(files)}
    found: dict[str, Row] = {}
    for row in read(files):
        if kind.needed <= row.get("times", {}).keys():
            apart = row[kind.grouped]
            found.setdefault(kind.key(row), {})[tuple(apart) if isinstance(apart, list) else apart] = row
    return found


def table(name: str, *files: str) -> str:
    """Return a table of a kind in Markdown."""
    kind = KINDS[name]
    measured = [lines(kind, each) for each in files]
    cells = {
        column: {line: column.value(measured[column.file][line]) for line in measured[0]} for column in kind.columns
    }
    columns = [column for column in kind.columns if any(value is not None for value in cells[column].values())]
    text = [[kind.title, *(column.title for column in columns)]]
    text.append(["---"] * (len(columns) + 1))
    text += [[line, *(shown(column, cells[column][line]) for column in columns)] for line in measured[0]]
    if len(measured[0]) > 1 and any(column.last for column in columns):
        text.append([kind.last, *(_last(column, cells[column]) for column in columns)])
    return "".join("| " + " | ".join(row) + " |\n" for row in text)


def shown(column: Column, value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else column.form(value)


def _last(column: Column, cells: dict[str, float | str | None]) -> str:
    values = [value for value in cells.values() if isinstance(value, int | float)]
    return f"**{column.form(column.last(values))}**" if column.last is not None else ""


def renewed(page: str) -> str:
    """Return the page with all of its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{table(*found[2].split())}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
