"""HTML and SVG as text, in which everything is escaped that is not markup already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite

VOID = frozenset({"meta", "br"})

LONG, VERY_LONG = 28, 90
"""The numbers of characters beyond which a cell may be folded, and beyond which it is wide."""

Cell = str | int | float | None


class Markup(str):
    """Text that is markup."""

    __slots__ = ()


def tag(name: str, /, *children: str | Markup, **attributes: object) -> Markup:
    """Return an element; attributes have hyphens for underscores, `class_` is class, and None leaves one out.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[str | Markup]) -> Markup:
    """Return the children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Markup:
    """Return a table that scrolls sideways without the page; a click on a header sorts it, where scripts run."""
    numeric = [
        any(isinstance(row[i], int | float) for row in rows) and not any(isinstance(row[i], str) for row in rows)
        for i in range(len(headers))
    ]
    head = [
        tag("th", header, class_="n" if right else None, scope="col")
        for header, right in zip(headers, numeric, strict=True)
    ]
    body = [tag("tr", *(_cell(cell, right) for cell, right in zip(row, numeric, strict=True))) for row in rows]
    whole = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex=0)


def facts(pairs: Iterable[tuple[str, Cell]]) -> Markup:
    """Return a list of names with their values; names without a value are left out."""
    known = [(name, shown(value)) for name, value in pairs if value not in (None, "")]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in known))


def section(title: str, *content: str | Markup) -> Markup:
    return tag("section", tag("h2", title), *content)


def details(title: str, *content: str | Markup) -> Markup:
    """Return content that is hidden until a reader asks for it."""
    return tag("details", tag("summary", title), *content)


def shown(cell: Cell) -> str:
    """Return a cell as text, with numbers in four digits."""
    if cell is None:
        return ""
    if isinstance(cell, bool | str):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if not isfinite(cell):
        return "-"
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"


def _cell(cell: Cell, right: bool) -> Markup:
    text = shown(cell)
    kind = "n" if right else "w" if len(text) > VERY_LONG else "l" if len(text) > LONG else None
    key = repr(cell) if isinstance(cell, int | float) and isfinite(cell) else None
    return tag("td", text, class_=kind, data_v=key)
