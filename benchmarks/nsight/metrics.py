"""Nsight Compute's metrics that are used here, and a reader of the CSV that `ncu --csv` prints."""

from __future__ import annotations

import csv
from pathlib import Path

Kernel = dict[str, float]
"""A kernel's values by metric."""

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
