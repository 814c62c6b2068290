"""Charts as SVG: bars, points below roofs, and curves. Colours are classes of the style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import ceil, floor, log10

from .markup import Markup, tag

WIDTH, LEFT, RIGHT, BOTTOM, TOP = 400, 44, 12, 30, 10
COLOURS = 11
"""The number of colours in the style sheet."""

STYLE = Markup(files(__package__).joinpath("charts.css").read_text())
"""The style sheet of the charts."""

LONGEST = 26
"""The number of characters of a row's name that are shown."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A chart and the names of its colours."""

    parts: Sequence[Markup]
    height: float
    names: Sequence[str]
    first: int = 0
    """The number of the first name's colour."""

    def figure(self) -> Markup:
        """Return the chart above its key, as HTML."""
        keys = [tag("span", tag("i", class_=_colour(i)), name) for i, name in enumerate(self.names, self.first)]
        chart = tag("svg", *self.parts, viewBox=f"0 0 {WIDTH} {self.height:.0f}", role="img")
        return tag("figure", chart, tag("figcaption", *keys))


class LogAxis:
    """A logarithmic axis, which maps positive numbers to coordinates between two ends of a line."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = log10(min(values)), log10(max(values))
        if self.high - self.low < 0.05:
            self.low, self.high = self.low - 0.1, self.high + 0.1
        self._start, self._step = start, (end - start) / (self.high - self.low)

    def __call__(self, value: float) -> float:
        return round(self._start + self._step * (log10(value) - self.low), 1)

    def ticks(self, whole: bool = False) -> list[float]:
        """Return round numbers within the axis, some three to eight; `whole` leaves out those with a fraction."""
        decades = range(floor(self.low), ceil(self.high) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            ticks = [step * 10.0**decade for decade in decades for step in steps]
            inside = [tick for tick in ticks if self.low - 1e-9 <= log10(tick) <= self.high + 1e-9]
            if len(inside) >= 3:
                break
        else:  # a short axis, on which equal steps are round
            inside = self._equal_steps()
        inside = [tick for tick in inside if not whole or tick == int(tick)]
        return inside[:: ceil(len(inside) / 8)] if inside else []

    def _equal_steps(self) -> list[float]:
        low, high = 10**self.low, 10**self.high
        decade = 10.0 ** floor(log10((high - low) / 3))
        step = decade * max(size for size in (1, 2, 5) if size * decade <= (high - low) / 3)
        first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def bars(rows: Mapping[str, Mapping[str, float]], unit: str, first: int) -> Chart:
    """Draw a group of horizontal bars for each row, from 1 to the right, or to the left where a value is below 1.

    Their names have the colours from number `first` on.
    """
    values = [value for row in rows.values() for value in row.values()]
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    left, row_gap, thick = 8 + 6 * min(max(map(len, rows)), LONGEST), 8, 9
    x = LogAxis([*values, 1.0], left, WIDTH - 34)
    parts: list[Markup] = []
    y = float(TOP)
    for label, row in rows.items():
        parts.append(_text(left - 6, y + thick * len(row) / 2 + 4, label[:LONGEST], "end"))
        for name, value in row.items():
            start, end = sorted((x(1.0), x(value)))
            title = tag("title", f"{label}, {name}: {value:.3g}")
            colour = _colour(first + names.index(name))
            size = {"height": thick - 1, "class_": f"f {colour}", "x": start, "y": y, "width": max(end - start, 1.0)}
            parts.append(tag("rect", title, **size))
            parts.append(_text(end + 3, y + thick - 2, f"{value:.3g}", "start", "tiny"))
            y += thick
        y += row_gap
    grid = [_line(x(tick), TOP - 4, x(tick), y, "grid") for tick in x.ticks()]
    grid += [_text(x(tick), y + 12, _number(tick), "middle") for tick in x.ticks()]
    grid.append(_line(x(1.0), TOP - 4, x(1.0), y, "axis"))
    return Chart([*grid, *parts, _text((left + WIDTH) / 2, y + 27, unit, "middle")], y + 32, names, first)


def points(
    series: Mapping[str, Sequence[tuple[str, float, float]]], roofs: Sequence[Sequence[Point]], axes: tuple[str, str]
) -> Chart:
    """Draw named points (label, x, y) of several series below lines of roofs, both axes logarithmic."""
    every = [(x, y) for marks in series.values() for _, x, y in marks]
    height = 300
    corners = [corner for line in roofs for corner in line]
    x = LogAxis([x for x, _ in [*every, *corners]], LEFT, WIDTH - RIGHT)
    y = LogAxis([y for _, y in [*every, *corners]], height - BOTTOM, TOP)
    parts = _frame(x.ticks(), x, y, height, axes)
    for line in roofs:
        parts.append(tag("polyline", points=" ".join(f"{x(a)},{y(b)}" for a, b in line), class_="axis"))
    for number, (name, marks) in enumerate(series.items()):
        for label, a, b in marks:
            title = tag("title", f"{label}, {name}: {b:.4g} at {a:.3g}")
            parts.append(
                tag("circle", title, cx=x(a), cy=y(b), r=4 if number == 0 else 3, class_=f"f {_colour(number)}")
            )
    return Chart(parts, height, list(series))


def curves(series: Mapping[str, Sequence[float]], axes: tuple[str, str]) -> Chart:
    """Draw curves over the numbers from 1, both axes logarithmic; a curve skips NaN. Past `COLOURS`, all look alike."""
    lines = {
        name: [(i, value) for i, value in enumerate(values, 1) if value == value] for name, values in series.items()
    }
    every = [point for line in lines.values() for point in line]
    height = 260
    x = LogAxis([1.0, max(a for a, _ in every)], LEFT, WIDTH - RIGHT)
    y = LogAxis([b for _, b in every], height - BOTTOM, TOP)
    parts = _frame(x.ticks(whole=True), x, y, height, axes)
    alike = len(lines) > COLOURS
    for number, (name, line) in enumerate(lines.items()):
        corners = [f"{x(a)},{y(b)}" for a, b in _stairs(line)]
        colour = "s c0 faint" if alike else f"s {_colour(number)}"
        parts.append(tag("polyline", tag("title", name), points=" ".join(corners), class_=colour))
    return Chart(parts, height, [] if alike else list(lines))


def _stairs(line: Sequence[tuple[int, float]]) -> list[Point]:
    """Return the corners of a curve that only goes down: its ends and the points where it falls."""
    corners: list[Point] = []
    for a, b in line:
        if not corners:
            corners.append((a, b))
        elif b != corners[-1][1]:
            corners += [(a, corners[-1][1]), (a, b)]
    if corners and corners[-1][0] != line[-1][0]:
        corners.append(line[-1])
    return corners


def _frame(ticks: Sequence[float], x: LogAxis, y: LogAxis, height: float, axes: tuple[str, str]) -> list[Markup]:
    """Return the grid with its numbers, `ticks` on the x axis, and the names of the axes."""
    parts = []
    for tick in ticks:
        parts += [_line(x(tick), TOP, x(tick), height - BOTTOM, "grid")]
        parts += [_text(x(tick), height - BOTTOM + 12, _number(tick), "middle")]
    for tick in y.ticks():
        parts += [
            _line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            _text(LEFT - 4, y(tick) + 3, _number(tick), "end"),
        ]
    parts.append(_text((LEFT + WIDTH) / 2, height - 4, axes[0], "middle"))
    middle = (height - BOTTOM) / 2
    parts.append(_text(0, 0, axes[1], "middle", transform=f"translate(9 {middle}) rotate(-90)"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, y1=round(y1, 1), x2=x2, y2=round(y2, 1), class_=kind)


def _text(x: float, y: float, content: str, anchor: str, kind: str | None = None, **more: object) -> Markup:
    return tag("text", content, **more, x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=kind)


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"


def _number(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
