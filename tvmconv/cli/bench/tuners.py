"""The command `tvmconv bench tuners`."""

from __future__ import annotations

from pathlib import Path

import click

from ..console import print_json, print_table, progress
from ..options import INPUT_FILE, JSON, argument, command, option


@command()
def tuners(
    logs: tuple[Path, ...] = argument(nargs=-1, required=True, type=INPUT_FILE, metavar="LOG..."),
    seeds: int = option("The number of runs of each tuner.", default=20),
    as_json: bool = JSON,
) -> None:
    """Count the trials that each tuner needs to find a configuration within 5% of the best of a space.

    Each LOG holds a trial of every configuration of its workloads, and is replayed. A tuner starts from nothing, but
    "xgb, warm" from 64 random records of each of the other workloads. The default configuration is the first trial of
    all, and does not count as found.
    """
    from tvmconv.bench.tuning.tuners import WITHIN, replay

    with progress(f"replaying {seeds} runs of each tuner on each space, which takes minutes"):
        rows = replay(logs, seeds)
    if as_json:
        print_json({"seeds": seeds, "within": WITHIN, "rows": rows})
        return
    print_table(
        ["workload", "space", "within 5%", "tuner", "trials", "lower quartile", "upper quartile", "% of the space"],
        [
            [
                *(row[name] for name in ("workload", "space", "good", "tuner", "median", "lower", "upper")),
                100 * row["share"],
            ]
            for row in rows
        ],
    )
    medians = {(row["workload"], row["tuner"]): row["median"] for row in rows}
    workloads = dict.fromkeys(row["workload"] for row in rows)
    fewer = sum(medians[workload, "xgb"] < medians[workload, "random"] for workload in workloads)
    share = max(row["share"] for row in rows if row["tuner"] == "xgb")
    click.echo(
        f"medians of {seeds} seeds: xgb needs fewer trials than random on {fewer} of {len(workloads)} workloads, "
        f"and {100 * share:.1f}% of a space at most"
    )
