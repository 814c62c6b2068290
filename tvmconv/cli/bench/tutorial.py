"""The command `tvmconv bench tutorial`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tvmconv.problem.errors import InvalidArgumentError

from ..console import note, print_json, print_table
from ..options import JSON, command, option, rounds
from .run import begin

if TYPE_CHECKING:
    from tvmconv.bench.report import Row
    from tvmconv.bench.timing import Timing
    from tvmconv.bench.tuning.tutorial import Entry


@command()
def tutorial(
    target: str = option(
        "The target: cuda, a tag of TVM such as nvidia/nvidia-h100, or a target as JSON.", default="cuda"
    ),
    rounds: int = rounds(9),
    as_json: bool = JSON,
) -> None:
    """Measure the tables of TVM's tutorial on depthwise convolution on a GPU of today.

    Each row is a configuration of tvmconv's one CUDA schedule, beside what tvmconv itself chooses for the workload,
    PyTorch, a copy of the same bytes, and the tutorial's own figures. All results are checked against the float64
    reference first. Times are in µs, medians of rounds in which all kernels of a workload take turns, with warm caches,
    the L2 too.
    """
    run = begin("tutorial", target, rounds)

    from tvmconv.bench.tuning.tutorial import SOURCE, TABLES, measure_tables
    from tvmconv.targets import backend_of

    if not backend_of(run.target).on_gpu:
        raise InvalidArgumentError("target", target, "a CUDA target: the tutorial is about GPUs")
    rows = measure_tables(run.target, rounds)
    if as_json:
        tables = [
            {"title": title, "rows": [_record(entry, rows[entry.workload]) for entry in entries]}
            for title, entries in TABLES.items()
        ]
        print_json({**run.facts, "tutorial": SOURCE, "tables": tables})
        return
    for title, entries in TABLES.items():
        click.echo(f"{title}, µs")
        cells = [_cells(entry, rows[entry.workload]) for entry in entries]
        print_table(list(cells[0]), [list(row.values()) for row in cells])
        click.echo()
    for row in rows.values():
        for name, reason in row.failed.items():
            note(f"{name} on {row.workload}: {reason}")
    click.echo(f"* {SOURCE}")
    click.echo(f"the others: {run}")


def _cells(entry: Entry, row: Row) -> dict[str, object]:
    """Return the cells of a row by the headers of their columns."""
    config, times = entry.config, _times(entry, row)
    this, ours, pytorch = times["config"], times["tvmconv"], times.get("pytorch")
    return {
        "workload": row.workload,
        "block": f"{config.block_y}x{config.block_x}",
        "threads": f"{config.threads_y}x{config.threads_x}",
        "vthreads": f"{config.vthreads_y}x{config.vthreads_x}",
        "TensorFlow*": entry.tensorflow,
        "TVM*": entry.tvm,
        "this row": 1e6 * this.median,
        "low-high": this.spread,
        "tvmconv": 1e6 * ours.median,
        "PyTorch": pytorch and 1e6 * pytorch.median,
        "copy": row.limit and 1e6 * row.limit,
        "PyTorch / this row": pytorch and pytorch.median / this.median,
        "PyTorch / tvmconv": pytorch and pytorch.median / ours.median,
    }


def _record(entry: Entry, row: Row) -> dict[str, object]:
    return {
        "workload": entry.workload,
        "config": entry.config,
        "gtx1080_us": {"tensorflow": entry.tensorflow, "tvm": entry.tvm},
        "times": _times(entry, row),
        "failed": row.failed,
    }


def _times(entry: Entry, row: Row) -> dict[str, Timing]:
    """Return the times that belong to a row of a table, without the workload's other configurations."""
    from tvmconv.bench.tuning.tutorial import BESIDE

    return {"config": row.times[str(entry.config)], **{name: row.times[name] for name in BESIDE if name in row.times}}
