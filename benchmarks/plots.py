"""Drawing of docs/figures.svg, the picture of the README, from the JSON beside this file: python benchmarks/plots.py

The picture has bars of whole networks beside one peer, of one run on one card.
"""

from __future__ import annotations

from math import ceil

from measured import ROOT, ratio, read, statistic

from tvmconv.bench.html.markup import Markup, tag

RUN, DATE = "networks-h200-float16-compile", "2026-11-30"
"""The file that is drawn, and the day on which it was measured."""

PEER, PEER_NAME = "torch-compile-half", "torch.compile"

NETWORKS = {
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNetV2",
    "regnet_y_400mf": "RegNetY-400MF",
    "convnext_tiny": "ConvNeXt-T",
}
"""The titles of the networks, in the order of their bars."""

WIDTH, LEFT, RIGHT, TOP, STEP, THICK = 720, 220, 60, 86, 30, 20
"""The width of the picture, its margins, and the distance and the thickness of bars, in pixels."""

GROUND, TEXT, QUIET, BAR = "#f6f8fa", "#1f2328", "#57606a", "#0969da"
"""Colours as plain values; the light ground makes dark text readable on light and on dark pages."""


def figures() -> Markup:
    """Draw how many times as fast as the peer tvmconv is on each network and batch."""
    document = read(RUN)
    found = {(row["name"], row["batch"]): ratio(row, [PEER], statistic(document)) or 0 for row in document["rows"]}
    bars = {
        f"{title}, batch {batch}": found[name, batch]
        for name, title in NETWORKS.items()
        for batch in sorted(batch for known, batch in found if known == name)
    }
    bottom = TOP + STEP * len(bars)
    height, end = bottom + 48, ceil(max(bars.values()))
    scale = (WIDTH - LEFT - RIGHT) / end
    parts = [
        tag("rect", width=WIDTH, height=height, rx=8, fill=GROUND),
        text(20, 30, f"tvmconv is this many times as fast as {PEER_NAME}", font_size=18, font_weight="bold"),
        text(20, 52, f"Whole networks in float16, {document['device']['name']}, one run of {DATE}", fill=QUIET),
    ]
    for tick in range(end + 1):
        parts.append(text(LEFT + scale * tick, bottom + 18, f"{tick}", fill=QUIET, text_anchor="middle"))
    for number, (title, value) in enumerate(bars.items()):
        y, length = TOP + STEP * number, round(scale * value, 1)
        parts.append(text(LEFT - 10, y + 15, title, text_anchor="end"))
        parts.append(tag("rect", x=LEFT, y=y, width=length, height=THICK, fill=BAR))
        parts.append(text(LEFT + length + 8, y + 15, f"{value:.2f}", font_weight="bold"))
    one = LEFT + round(scale, 1)
    parts.append(tag("line", x1=one, x2=one, y1=TOP - 8, y2=bottom, stroke=TEXT, stroke_width=2))
    parts.append(text(one, bottom + 38, f"1: as fast as {PEER_NAME}", text_anchor="middle"))
    size = {"width": WIDTH, "height": height, "viewBox": f"0 0 {WIDTH} {height}"}
    font = {"font_family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif", "font_size": 14}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", **size, **font)


def text(x: float, y: float, content: str, fill: str = TEXT, **more: object) -> Markup:
    """Return text, whose line begins at the point where nothing else is said."""
    return tag("text", content, x=round(x, 1), y=y, fill=fill, **more)


PLOTS = {"figures.svg": figures}
"""The functions that draw each file of docs/."""

if __name__ == "__main__":
    for name, draw in PLOTS.items():
        (ROOT / "docs" / name).write_text(draw() + "\n")
