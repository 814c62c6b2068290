"""Plots of reports: bars of times as multiples of a copy's or of tvmconv's, and a roofline.

Importing this module needs matplotlib, so that a missing one is found before anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmconv.problem.errors import MissingPackageError

from .peers import OURS, known_peers
from .report import Report, Roofs, Row

try:
    from matplotlib import colormaps
    from matplotlib.figure import Figure
except ImportError:
    raise MissingPackageError("matplotlib", "plot", "tvmconv bench with --plot") from None

if TYPE_CHECKING:
    from .networks.network import NetworkRow

ON_ROOFLINE = (OURS.name, "pytorch")


def draw(report: Report, path: Path) -> None:
    """Write a PNG of a report that has roofs."""
    assert report.roofs is not None
    names = [OURS.name, *known_peers()]
    found = [name for name in names if any(name in row.times for row in report.rows)]
    colours = _colours(names)
    figure = Figure(figsize=(max(10, 3 + 1.1 * len(report.rows)), 12), layout="constrained")
    figure.suptitle(f"{report.device}, {report.cache} caches, medians of {report.rounds} rounds")
    upper, lower = figure.subplots(2)
    multiples = [
        {name: time.median / row.limit for name, time in row.times.items()} for row in report.rows if row.limit
    ]
    _bars(upper, [row.name for row in report.rows], multiples, found, colours)
    upper.set_ylabel("time of a call, as a multiple of a copy's")
    _roofline(lower, report.rows, report.roofs, colours)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=120)


def draw_networks(rows: Sequence[NetworkRow], title: str, path: Path) -> None:
    """Write a PNG with the times of networks, each as a multiple of tvmconv's."""
    names = list(dict.fromkeys(name for row in rows for name in row.times if name != OURS.name))
    figure = Figure(figsize=(max(8, 3 + 1.1 * len(rows)), 6), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots()
    multiples = [{name: ratio for name in names if (ratio := row.times_faster(name)) is not None} for row in rows]
    _bars(axes, [f"{row.name}, batch {row.batch}" for row in rows], multiples, names, _colours(names))
    axes.set_ylabel(f"time of a call, as a multiple of that of {OURS.name}")
    if names:
        figure.legend(loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=120)


def _colours(names: Sequence[str]) -> dict[str, Any]:
    return dict(zip(names, [colormaps["tab20"](i) for i in range(len(names))], strict=True))


def _bars(
    axes: Any,
    labels: Sequence[str],
    multiples: Sequence[Mapping[str, float]],
    names: Sequence[str],
    colours: Mapping[str, Any],
) -> None:
    """Draw a group of bars for each label, from 1 up, or down where a multiple is less."""
    width = 0.85 / max(1, len(names))
    for i, name in enumerate(names):
        there = [(place, found[name]) for place, found in enumerate(multiples) if name in found]
        places = [place + (i - (len(names) - 1) / 2) * width for place, _ in there]
        heights = [multiple - 1 for _, multiple in there]
        axes.bar(places, heights, width, bottom=1, label=name, color=colours[name])
    axes.set_yscale("log")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.grid(axis="y", which="both", alpha=0.3)
    axes.set_axisbelow(True)


def _roofline(axes: Any, rows: list[Row], roofs: Roofs, colours: dict[str, Any]) -> None:
    """Draw rates against operations for each byte that has to be moved, below the roofs measured on the device."""
    intensities = [row.flops / row.bytes for row in rows]
    ridge = roofs.flops / roofs.bandwidth
    ends = sorted({min(*intensities, ridge) / 2, ridge, max(*intensities, ridge) * 2})
    axes.plot(
        ends,
        [min(x * roofs.bandwidth, roofs.flops) / 1e9 for x in ends],
        color="black",
        label="roofs: copy in memory, multiply-adds",
    )
    for name, marker in zip(ON_ROOFLINE, "os", strict=True):
        there = [(x, row) for x, row in zip(intensities, rows, strict=True) if name in row.times]
        rates = [row.flops / row.times[name].median / 1e9 for _, row in there]
        axes.plot([x for x, _ in there], rates, marker, color=colours[name], label=name)
        if name == OURS.name:
            for rate, (x, row) in zip(rates, there, strict=True):
                axes.annotate(row.name, (x, rate), xytext=(5, -3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP for each byte of input, weight and output")
    axes.set_ylabel("GFLOP/s")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
