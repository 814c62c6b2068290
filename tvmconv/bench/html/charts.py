"""Charts as SVG: bars, points below roofs, and curves. A contender has one colour in all of them, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from .markup import Markup, tag

WIDTH, LEFT, RIGHT, BOTTOM, TOP = 400, 44, 12, 30, 10
STEP = 14
"""The height of a line of a key or of a note."""

PALETTE = {
    "tvmconv": "#2f6fb5", "pytorch": "#d1730f", "pytorch-channels-last": "#e0a63a", "torch-compile": "#2c8a4b",
    "onnxruntime": "#b3405c", "openvino": "#d6569a", "tvm": "#7a5bb5", "pytorch-tf32": "#8a6d2f",
    "pytorch-half": "#12868f", "torch-compile-half": "#7fa63b", "pytorch-autocast": "#5fa8b0",
    "torch-compile-max-autotune": "#4f7d1a", "tvmconv-float32": "#8fb4e0", "tvmconv-dense": "#4a55c4",
    "tvmconv-direct": "#57a0d3", "tvmconv-im2win": "#7b86d9", "tvmconv-channels-last": "#6f8fa8", "gemm": "#c23b22",
    "gemm-channels-last": "#e5806b", "im2col-gemm": "#a8336f", "im2col-spmm": "#d98cb3", "pytorch-fp16": "#a3714a",
    "pytorch-tf32-channels-last": "#b59b5b", "metaschedule": "#7d3c98", "copy": "#8a8f98",
}  # fmt: skip
"""Colours by contender, which are told apart on white and on black; other names take those that a chart leaves over."""

GRID, AXIS, GROUND = "#d9dee4", "#5b6470", "#ffffff"

STYLE = Markup("""
svg { font: 10px system-ui, sans-serif; fill: #1c2024; }
svg text.tiny { font-size: 8px; fill: #5b6470; }
@media (prefers-color-scheme: dark) {
  svg text { fill: #e3e7ec; } svg text.tiny { fill: #9aa4b0; }
  .grid { stroke: #333a43; } .axis { stroke: #9aa4b0; } .ground { fill: #14171b; }
}
""")
"""The style sheet of the charts: fonts, and the colours of dark pages. All other colours are attributes, without
variables, which every program that draws SVG knows."""

LONGEST = 26
"""The number of characters of a row's name that are shown."""

Point = tuple[float, float]


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return the colours of names in a chart; "torch.compile" has that of "torch-compile"."""
    plain = {re.sub(r"\W", "", name): colour for name, colour in PALETTE.items()}
    found = {name: plain.get(re.sub(r"\W", "", name.lower())) for name in names}
    first, *rest = PALETTE.values()
    free = [colour for colour in (*rest, first) if colour not in found.values()] or [*rest]
    others = [name for name, colour in found.items() if colour is None]
    given = {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: colour or given[name] for name, colour in found.items()}


@dataclass(frozen=True)
class Chart:
    """A chart, and the colours of its names, which are its key."""

    parts: Sequence[Markup]
    height: float
    colours: Mapping[str, str]

    def figure(self) -> Markup:
        """Return the chart above its key, as HTML."""
        keys = [tag("span", tag("i", style=f"background:{colour}"), name) for name, colour in self.colours.items()]
        chart = tag("svg", *self.parts, viewBox=f"0 0 {WIDTH} {self.height:.0f}", role="img")
        return tag("figure", chart, tag("figcaption", *keys))


def below_each_other(charts: Sequence[Chart], notes: Sequence[str]) -> Markup:
    """Return charts above their keys as one SVG file, with lines of notes at its end."""
    parts, y = list[Markup](), 0.0
    for chart in charts:
        parts.append(tag("g", *chart.parts, transform=f"translate(0 {y:.0f})" if y else None))
        y += chart.height + 12
        for number, (name, colour) in enumerate(chart.colours.items()):
            x, line = 12 + 125 * (number % 3), y + STEP * (number // 3)
            parts.append(tag("rect", x=x, y=line - 8, width=9, height=9, fill=colour))
            parts.append(_text(x + 13, line, name, "start"))
        y += STEP * ceil(len(chart.colours) / 3)
    parts += [_text(12, y + STEP * number, note, "start", "tiny") for number, note in enumerate(notes)]
    y += STEP * len(notes)
    ground = tag("rect", width=WIDTH, height=y, fill=GROUND, class_="ground")
    size = {"viewBox": f"0 0 {WIDTH} {y:.0f}", "width": 1.6 * WIDTH, "height": f"{1.6 * y:.0f}"}
    return tag("svg", tag("style", STYLE), ground, *parts, xmlns="http://www.w3.org/2000/svg", **size)


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


def bars(rows: Mapping[str, Mapping[str, float]], unit: str) -> Chart:
    """Draw a group of horizontal bars for each row, from 1 to the right, or to the left where a value is less."""
    values = [value for row in rows.values() for value in row.values()]
    colours = colours_of(dict.fromkeys(name for row in rows.values() for name in row))
    left, row_gap, thick = 8 + 6 * min(max(map(len, rows)), LONGEST), 8, 9
    x = LogAxis([*values, 1.0], left, WIDTH - 34)
    parts: list[Markup] = []
    y = float(TOP)
    for label, row in rows.items():
        parts.append(_text(left - 6, y + thick * len(row) / 2 + 4, label[:LONGEST], "end"))
        for name, value in row.items():
            start, end = sorted((x(1.0), x(value)))
            title = tag("title", f"{label}, {name}: {value:.3g}")
            size = {"x": start, "y": y, "width": max(end - start, 1.0), "height": thick - 1}
            parts.append(tag("rect", title, **size, fill=colours[name]))
            parts.append(_text(end + 3, y + thick - 2, f"{value:.3g}", "start", "tiny"))
            y += thick
        y += row_gap
    grid = [_line(x(tick), TOP - 4, x(tick), y, "grid") for tick in x.ticks()]
    grid += [_text(x(tick), y + 12, _number(tick), "middle") for tick in x.ticks()]
    grid.append(_line(x(1.0), TOP - 4, x(1.0), y, "axis"))
    return Chart([*grid, *parts, _text((left + WIDTH) / 2, y + 27, unit, "middle")], y + 32, colours)


def points(
    series: Mapping[str, Sequence[tuple[str, float, float]]], roofs: Sequence[Sequence[Point]], axes: tuple[str, str]
) -> Chart:
    """Draw named points (label, x, y) of several series below lines of roofs, both axes logarithmic."""
    every = [(x, y) for marks in series.values() for _, x, y in marks]
    every += [corner for line in roofs for corner in line]
    height, colours = 300, colours_of(series)
    x = LogAxis([x for x, _ in every], LEFT, WIDTH - RIGHT)
    y = LogAxis([y for _, y in every], height - BOTTOM, TOP)
    parts = _frame(x.ticks(), x, y, height, axes)
    for line in roofs:
        corners = " ".join(f"{x(a)},{y(b)}" for a, b in line)
        parts.append(tag("polyline", points=corners, fill="none", stroke=AXIS, class_="axis"))
    for radius, (name, marks) in zip((4, *[3] * len(series)), series.items(), strict=False):
        for label, a, b in marks:
            title = tag("title", f"{label}, {name}: {b:.4g} at {a:.3g}")
            parts.append(tag("circle", title, cx=x(a), cy=y(b), r=radius, fill=colours[name]))
    return Chart(parts, height, colours)


def curves(series: Mapping[str, Sequence[float]], axes: tuple[str, str]) -> Chart:
    """Draw curves over the numbers from 1, both axes logarithmic; a curve skips NaN.

    More curves than there are colours all look alike.
    """
    lines = {
        name: [(i, value) for i, value in enumerate(values, 1) if value == value] for name, values in series.items()
    }
    every = [point for line in lines.values() for point in line]
    height, colours = 260, colours_of(lines) if len(lines) <= len(PALETTE) else {}
    x = LogAxis([1.0, max(a for a, _ in every)], LEFT, WIDTH - RIGHT)
    y = LogAxis([b for _, b in every], height - BOTTOM, TOP)
    parts = _frame(x.ticks(whole=True), x, y, height, axes)
    for name, line in lines.items():
        corners = " ".join(f"{x(a)},{y(b)}" for a, b in _stairs(line))
        stroke = {"stroke": colours.get(name, PALETTE["tvmconv"]), "stroke_opacity": None if colours else 0.4}
        parts.append(tag("polyline", tag("title", name), points=corners, fill="none", **stroke))
    return Chart(parts, height, colours)


def _stairs(line: Sequence[tuple[int, float]]) -> list[Point]:
    """Return the corners of a curve that only goes down: its ends and the points where it falls."""
    corners: list[Point] = [*line[:1]]
    for (_, before), (a, b) in pairwise(line):
        if b != before:
            corners += [(a, before), (a, b)]
    return [*dict.fromkeys([*corners, *line[-1:]])]


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
    stroke = {"stroke": GRID if kind == "grid" else AXIS, "class_": kind}
    return tag("line", x1=x1, y1=round(y1, 1), x2=x2, y2=round(y2, 1), **stroke)


def _text(x: float, y: float, content: str, anchor: str, kind: str | None = None, **more: object) -> Markup:
    return tag("text", content, **more, x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=kind)


def _number(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
