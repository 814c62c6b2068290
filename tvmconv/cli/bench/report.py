"""Printing of reports: the tables of `tvmconv bench suite`, and those that other commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

import click

from ..console import print_table

if TYPE_CHECKING:
    from tvmconv.bench.report import Compared, Report, Row

    from .run import Run


def print_report(report: Report, run: Run) -> None:
    """Print a table for each suite, with its geometric means and absent peers, and the means over all suites."""
    from tvmconv.bench.report import figures

    click.echo(run)
    suites = list(dict.fromkeys(row.suite for row in report.rows))
    for suite in suites:
        rows = [row for row in report.rows if row.suite == suite]
        click.echo(f"\n{suite}")
        print_table(*figures(rows))
        _print_means(rows)
        print_absent(rows)
    if len(suites) > 1:
        click.echo("\nall suites")
        _print_means(report.rows)


def _print_means(rows: Sequence[Row]) -> None:
    from tvmconv.bench.report import peers_of

    ours = [row.limit / row.ours.median for row in rows if row.ours and row.limit is not None]
    if ours:
        print_means("", rows, peers_of(rows), [f"{100 * geometric_mean(ours):.3g}% of copy ({len(ours)})"])


def print_means(where: str, rows: Sequence[Compared], peers: Iterable[str], before: Sequence[str] = ()) -> None:
    """Print how many times as long as tvmconv each peer takes in the geometric mean, and over how many rows."""
    from tvmconv.bench.report import geometric_means

    means = [f"{mean:.3g} x {peer} ({count})" for peer, (mean, count) in geometric_means(rows, peers).items()]
    click.echo(f"{where}geometric means (of so many): {', '.join([*before, *means])}")


def print_absent(rows: Sequence[Compared]) -> None:
    """Print the peers that took no part, or failed, and in which rows if not in all."""
    from tvmconv.bench.report import absent

    for (peer, kind, reason), names in absent(rows).items():
        where = "" if len(names) == len(rows) else f" ({', '.join(names)})"
        click.echo(f"{peer} {kind}: {reason}{where}")
