"""The section for a benchmark of suites: bars, a roofline, and a table of all figures."""

from __future__ import annotations

from collections.abc import Sequence

from ..peers import OURS
from ..report import Report, Row, absent, figures, geometric_means, peers_of
from . import charts
from .markup import Cell, Markup, details, facts, join, section, table, tag


def benchmark(title: str, report: Report) -> Markup:
    """Return the section of a benchmark."""
    head = facts(
        [
            ("device", str(report.device)),
            ("rounds", report.rounds),
            ("caches", report.cache),
            ("workloads", len(report.rows)),
        ]
    )
    suites = dict.fromkeys(row.suite for row in report.rows)
    parts = [_suite(suite, [row for row in report.rows if row.suite == suite], report) for suite in suites]
    return section(title, head, *parts, _absent(report.rows))


def _suite(name: str, rows: Sequence[Row], report: Report) -> Markup:
    peers, measured = peers_of(rows), [row for row in rows if row.ours]
    parts: list[Markup] = []
    if means := geometric_means(measured, peers):
        ratios = {
            row.name: {peer: ratio for peer in peers if (ratio := row.times_faster(peer)) is not None}
            for row in measured
        }
        overall = {"geometric mean": {peer: mean for peer, (mean, _) in means.items()}}
        parts.append(charts.bars({**overall, **ratios}, "times as long as tvmconv takes", first=1).figure())
    if measured:
        parts.append(_roofline(measured, peers, report))
    why = [[row.name, row.workload, row.flops, row.bytes, row.selection] for row in rows]
    more = details("workloads and configurations", table(["name", "workload", "FLOP", "bytes", "configuration"], why))
    return join([tag("h3", name), tag("div", *parts, class_="charts"), table(*figures(rows)), more])


def _roofline(rows: Sequence[Row], peers: Sequence[str], report: Report) -> Markup:
    """Draw rates below the device's roofs, and below the fastest copy of the rows, which may be one from a cache."""
    marks = {
        name: [
            (row.name, row.flops / row.bytes, row.flops / row.times[name].median / 1e9)
            for row in rows
            if name in row.times
        ]
        for name in (OURS.name, *peers)
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
    chart = charts.points(marks, roofs, ("FLOP a byte moved", "GFLOP/s"))
    return tag("div", chart.figure(), tag("p", note, class_="note") if roofs else Markup())


def _absent(rows: Sequence[Row]) -> Markup:
    """Return a table of the peers that took no part, or were wrong, and the rows."""
    body: list[list[Cell]] = [[*key, len(names), ", ".join(names)] for key, names in absent(rows).items()]
    headers = ["peer", "what", "reason", "rows", "which"]
    return join([tag("h3", "Took no part"), table(headers, body)]) if body else Markup()
