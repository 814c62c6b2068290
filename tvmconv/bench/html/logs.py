"""The section for a tuning log: the gains of tuning, its convergence, and the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import starmap
from math import inf, isfinite
from statistics import geometric_mean

from tvmconv.autotvm.tidy import Made, best_so_far, by_making, default_record
from tvmconv.dispatch.history import best_record
from tvmconv.dispatch.record import Log, Record
from tvmconv.dispatch.trial import Stage, Status

from .charts import Chart, curves
from .markup import Cell, Markup, details, facts, join, section, table, tag

REASONS = 12
"""The number of different reasons of failures that are listed."""


def tuning(title: str, log: Log) -> Markup:
    """Return the section of a log."""
    groups = by_making(log.records)
    skipped = ", ".join(f"{count} {kind}" for kind, count in log.skipped.items())
    head = facts(
        [
            ("trials", sum(map(_is_trial, log.records))),
            ("workloads", len({made.problem for made in groups})),
            ("devices", ", ".join(dict.fromkeys(made.device for made in groups))),
            ("made with", "; ".join(dict.fromkeys(starmap(_versions, groups.items())))),
            ("under way when a run ended", len(log.under_way) or None),
            ("lines left out", skipped),
        ]
    )
    rows = [_row(made, records) for made, records in groups.items()]
    gains = [row[4] for row in rows if isinstance(row[4], float)]
    means = Markup()
    if len(gains) > 1:
        mean = f"{geometric_mean(gains):.3g} times as long as the best (geometric mean over {len(gains)} workloads)"
        means = tag("p", f"Default configurations take {mean}.")
    headers = ["workload", "template", "default, µs", "best, µs", "times", "trials", "failed", "best configuration"]
    return section(title, head, _convergence(groups), means, table([*headers, "device"], rows), _failures(log.records))


def _row(made: Made, records: Sequence[Record]) -> list[Cell]:
    best, default = best_record(records), default_record(records)
    failed = sum(record.status is not Status.OK for record in records)
    knobs = "" if best is None else ", ".join(f"{name}={value}" for name, value in best.knobs.items())
    costs = [None if record is None else 1e6 * record.cost for record in (default, best)]
    gain = None if default is None or best is None else default.cost / best.cost
    return [str(made.problem), made.template, *costs, gain, sum(map(_is_trial, records)), failed, knobs, made.device]


def _versions(made: Made, records: Sequence[Record]) -> str:
    last = records[-1]
    driver = f"driver {last.device.driver}, " if last.device.driver else ""
    return f"apache-tvm {made.tvm}, tvmconv {last.versions.tvmconv}, {driver}{made.processor}"


def _is_trial(record: Record) -> bool:
    """Return whether a record is of the search, not of the measurements at its end."""
    return record.stage is Stage.SEARCH


def _convergence(groups: dict[Made, list[Record]]) -> Markup:
    """Draw the best so far, as a multiple of the best of all, over the trials of each workload's search."""
    found = {f"{made.problem} ({made.template}, {made.device})": best_so_far(same) for made, same in groups.items()}
    chart = convergence(found)
    return tag("div", chart.figure(), class_="charts") if chart else Markup()


def convergence(runs: Mapping[str, Sequence[float]]) -> Chart | None:
    """Draw the best cost after each trial of each search, NaN where there is none yet, as a multiple of its least."""
    least = {name: min((cost for cost in curve if isfinite(cost)), default=inf) for name, curve in runs.items()}
    series = {
        name: [cost / least[name] for cost in curve]
        for name, curve in runs.items()
        if len(curve) > 1 and isfinite(least[name])
    }
    return curves(series, ("trial", "best so far / best")) if series else None


def _failures(records: Sequence[Record]) -> Markup:
    failed = [record for record in records if record.status is not Status.OK]
    if not failed:
        return tag("p", "No trial failed.")
    classes = Counter((record.status.value, record.template) for record in failed)
    reasons = Counter((record.status.value, record.reason or "") for record in failed)
    shares: list[list[Cell]] = [[*key, count, f"{count / len(records):.2%}"] for key, count in classes.most_common()]
    listed: list[list[Cell]] = [[count, *key] for key, count in reasons.most_common(REASONS)]
    more = details(
        f"reasons, the {len(listed)} most frequent of {len(reasons)}", table(["trials", "class", "reason"], listed)
    )
    return join([tag("h3", "Failures"), table(["class", "template", "trials", "share"], shares), more])
