"""Nsight Compute's metrics that are used here, a reader of the CSV that `ncu --csv` prints, and scripts for both."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from tvmconv.cli import Commands
from tvmconv.cli.console import print_table

Kernel = dict[str, float]
"""A kernel's values by metric."""

Table = tuple[list[str], list[list[str]]]
"""Headers, and rows of cells."""

NAME = "Kernel Name"

DURATION = "gpu__time_duration.sum"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ISSUE_SLOTS = "smsp__issue_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS, MULTIPLY_ADDS = "smsp__inst_executed.sum", "smsp__inst_executed_pipe_fma.sum"


def stalled(reason: str) -> str:
    """Return the metric of the warps that wait for a reason in a slot that issues."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def read_kernels(path: Path) -> list[tuple[str, Kernel]]:
    """Return names and values of the launches in the file, which may be compressed, in their order."""
    from tvmconv.dispatch.record import read_unpacked

    lines = read_unpacked("file", path).decode().splitlines()
    found: dict[str, tuple[str, Kernel]] = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        _, values = found.setdefault(row["ID"], (row[NAME], {}))
        values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return list(found.values())


def script(about: str, metrics: Sequence[str], run: Callable[[], None], table: Callable[[Path], Table]) -> click.Group:
    """Return the commands of a script: its metrics, the calls that are profiled, and the table of their profile."""
    path = click.Argument(["path"], metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
    calls = "Call each kernel on this machine's GPU, which `ncu` profiles."
    printed = "Print a table from the output of `ncu --csv`; FILE may be compressed."
    return Commands(
        help=about,
        commands=[
            click.Command(
                "metrics", callback=lambda: click.echo(",".join(metrics)), help="Print what `ncu --metrics` takes."
            ),
            click.Command("run", callback=run, help=calls),
            click.Command("table", callback=lambda path: print_table(*table(path)), params=[path], help=printed),
        ],
    )
