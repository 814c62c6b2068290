"""The section for a benchmark of suites: bars, a roofline, and a table of all figures."""

from __future__ import annotations

from collections.abc import Sequence

from ..peers import LIMITS, OURS, known_peers
from ..report import Report, Row, geometric_means
from ..timing import Timing
from . import charts
from .files import Source
from .markup import Cell, Markup, details, facts, join, section, shown, table, tag


def benchmark(source: Source, report: Report) -> Markup:
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
    return section(source.name, head, *parts, _absent(report.rows))


def _suite(name: str, rows: Sequence[Row], report: Report) -> Markup:
    peers = [peer for peer in known_peers() if any(peer in row.times for row in rows)]
    peers += sorted(
        {peer for row in rows for peer in row.times} - {*known_peers(), OURS.name, *(limit.name for limit in LIMITS)}
    )
    measured = [row for row in rows if row.ours]
    parts = [tag("h3", name)]
    if measured and (means := geometric_means(measured, peers)):
        ratios = {
            row.name: {peer: ratio for peer in peers if (ratio := row.times_faster(peer)) is not None}
            for row in measured
        }
        overall = {"geometric mean": {peer: mean for peer, (mean, _) in means.items()}}
        parts.append(charts.bars({**overall, **ratios}, "times as long as tvmconv takes", first=1).figure())
    if measured:
        parts.append(_roofline(measured, peers, report))
    return join([parts[0], tag("div", *parts[1:], class_="charts"), _table(rows, peers)])


def _roofline(rows: Sequence[Row], peers: Sequence[str], report: Report) -> Markup:
    """Draw rates below the device's roofs, and below the fastest copy of the rows, which may be one from a cache."""
    marks = {
        name: [(row.name, row.flops / row.bytes, _rate(row, name)) for row in rows if name in row.times]
        for name in (OURS.name, *peers)
    }
    intensities = [row.flops / row.bytes for row in rows]
    low, high = min(intensities) / 1.5, max(intensities) * 1.5
    speeds = [max(row.bytes / row.limit for row in rows if _has_limit(row))] if any(map(_has_limit, rows)) else []
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


def _rate(row: Row, name: str) -> float:
    """Return the rate of a row in GFLOP/s."""
    return row.flops / row.times[name].median / 1e9


def _table(rows: Sequence[Row], peers: Sequence[str]) -> Markup:
    headers = ["name", "tvmconv, µs", "low-high", "GFLOP/s", "GB/s", "copy, µs", "times copy"]
    headers += [f"x {peer}" for peer in peers]
    body = [[*_ours(row), *(row.times_faster(peer) for peer in peers)] for row in rows]
    why = [[row.name, row.workload, row.flops, row.bytes, row.selection] for row in rows]
    more = details("workloads and configurations", table(["name", "workload", "FLOP", "bytes", "configuration"], why))
    return join([table(headers, body), more])


def _ours(row: Row) -> list[Cell]:
    copy = row.limit if _has_limit(row) else None
    micros = None if copy is None else 1e6 * copy
    if row.ours is None:
        return [row.name, None, None, None, None, micros, None]
    seconds = row.ours.median
    times = None if copy is None else seconds / copy
    return [
        row.name,
        1e6 * seconds,
        _range(row.ours),
        row.flops / seconds / 1e9,
        row.bytes / seconds / 1e9,
        micros,
        times,
    ]


def _has_limit(row: Row) -> bool:
    return all(limit.name in row.times for limit in LIMITS)


def _range(timing: Timing) -> str:
    return f"{shown(1e6 * timing.low)}-{shown(1e6 * timing.high)}"


def _absent(rows: Sequence[Row]) -> Markup:
    """Return a table of the peers that took no part, or were wrong, and the rows."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for kind, absent in (("skipped", row.skipped), ("failed", row.failed)):
            for peer, reason in absent.items():
                found.setdefault((peer, kind, reason), []).append(row.name)
    if not found:
        return Markup()
    body: list[list[Cell]] = [[*key, len(names), ", ".join(names)] for key, names in found.items()]
    return join([tag("h3", "Took no part"), table(["peer", "what", "reason", "rows", "which"], body)])
