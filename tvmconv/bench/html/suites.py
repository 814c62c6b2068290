"""The section for a benchmark of suites: bars, a roofline, and a table of all figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from ..peers import LIMITS, OURS
from ..report import Report, Row, absent, figures, peers_of
from .charts import Chart, bars, points
from .markup import Cell, Markup, details, facts, join, section, table, tag


def benchmark(title: str, report: Report) -> Markup:
    """Return the section of a benchmark."""
    head = facts(
        [
            ("device", str(report.device)),
            ("rounds", report.rounds),
            ("caches", report.cache),
            ("workloads", len(report.rows)),
            ("driver", report.device.driver),
            (
                "target",
                " ".join(str(report.target[name]) for name in ("kind", "arch", "mcpu") if name in report.target),
            ),
            ("versions", ", ".join(f"{package} {version}" for package, version in report.versions.items())),
        ]
    )
    suites = dict.fromkeys(row.suite for row in report.rows)
    parts = [_suite(suite, [row for row in report.rows if row.suite == suite], report) for suite in suites]
    return section(title, head, *parts, _absent(report.rows))


def _suite(name: str, rows: Sequence[Row], report: Report) -> Markup:
    charts, note = charts_of(rows, report)
    why = [[row.name, row.workload, row.flops, row.bytes, row.selection] for row in rows]
    more = details("workloads and configurations", table(["name", "workload", "FLOP", "bytes", "configuration"], why))
    drawn = tag("div", *(chart.figure() for chart in charts), class_="charts")
    return join([tag("h3", name), drawn, tag("p", note, class_="note"), table(*figures(rows)), more])


def charts_of(rows: Sequence[Row], report: Report) -> tuple[list[Chart], str]:
    """Return bars and a roofline of those rows that tvmconv has run on, and a note about the roofs."""
    measured = [row for row in rows if row.ours]
    times = {row.name: {name: time.median for name, time in row.times.items()} for row in measured}
    if not measured:
        return [], ""
    (roofline, note), relative = _roofline(measured, report), relative_bars(times)
    return [relative, roofline] if relative else [roofline], note


def relative_bars(times: Mapping[str, Mapping[str, float]]) -> Chart | None:
    """Draw seconds of contenders by row as multiples of tvmconv's, with their geometric means; None without peers."""
    limits = {OURS.name, *(limit.name for limit in LIMITS)}
    ratios = {
        label: {name: each / row[OURS.name] for name, each in row.items() if name not in limits}
        for label, row in times.items()
        if OURS.name in row
    }
    names = dict.fromkeys(name for row in ratios.values() for name in row)
    if not names:
        return None
    means = {name: geometric_mean([row[name] for row in ratios.values() if name in row]) for name in names}
    return bars({"geometric mean": means, **ratios}, "times as long as tvmconv takes")


def _roofline(rows: Sequence[Row], report: Report) -> tuple[Chart, str]:
    """Draw rates below the device's roofs, and below the fastest copy of the rows, which may be one from a cache."""
    marks = {
        name: [
            (row.name, row.flops / row.bytes, row.flops / row.times[name].median / 1e9)
            for row in rows
            if name in row.times
        ]
        for name in (OURS.name, *peers_of(rows))
    }
    intensities = [row.flops / row.bytes for row in rows]
    low, high = min(intensities) / 1.5, max(intensities) * 1.5
    speeds = sorted([row.bytes / row.limit for row in rows if row.limit is not None])[-1:]
    if report.roofs is not None:
        speeds = [report.roofs.bandwidth, *(speed for speed in speeds if speed > report.roofs.bandwidth)]
        flops = report.roofs.flops
        note = "lines: a copy in memory and multiply-adds; above it the fastest copy of these rows, from a cache"
    else:
        flops = 4e9 * max(rate for series in marks.values() for *_, rate in series)
        high = min([high, *(flops / speed for speed in speeds)])
        note = "line: the fastest copy of these rows, small ones from a cache; multiply-adds were not measured"
    ends = {speed: [x for x in (low, flops / speed, high) if low <= x <= high] for speed in speeds}
    roofs = [[(x, min(x * speed, flops) / 1e9) for x in line] for speed, line in ends.items() if line]
    return points(marks, roofs, ("FLOP a byte moved", "GFLOP/s")), note if roofs else ""


def _absent(rows: Sequence[Row]) -> Markup:
    """Return a table of the peers that took no part, or were wrong, and the rows."""
    body: list[list[Cell]] = [[*key, len(names), ", ".join(names)] for key, names in absent(rows).items()]
    headers = ["peer", "what", "reason", "rows", "which"]
    return join([tag("h3", "Took no part"), table(headers, body)]) if body else Markup()
