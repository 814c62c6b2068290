"""The command `tvmconv bench tutorial`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tvmconv.problem.errors import InvalidArgumentError

from ..console import note, print_json, print_table
from ..options import POSITIVE, json_option
from .report import conditions, require_torch

if TYPE_CHECKING:
    from tvmconv.bench.report import Row
    from tvmconv.bench.timing import Timing
    from tvmconv.bench.tuning.tutorial import Entry

HEADERS = (
    "workload",
    "block",
    "threads",
    "vthreads",
    "TensorFlow*",
    "TVM*",
    "this row",
    "low-high",
    "tvmconv",
    "PyTorch",
    "copy",
    "PyTorch / this row",
    "PyTorch / tvmconv",
)


@click.command()
@click.option(
    "--target", default="cuda", help="The target: cuda, a tag of TVM such as nvidia/nvidia-h100, or a target as JSON."
)
@click.option("--rounds", type=POSITIVE, default=9, help="The number of times that each kernel is timed.")
@json_option
def tutorial(target: str, rounds: int, as_json: bool) -> None:
    """Measure the tables of TVM's tutorial on depthwise convolution on a GPU of today.

    Each row is a configuration of tvmconv's one CUDA schedule, beside what tvmconv itself chooses for the workload,
    PyTorch, a copy of the same bytes, and the tutorial's own figures. All results are checked against the float64
    reference first. Times are in µs, medians of rounds in which all kernels of a workload take turns, with warm caches,
    the L2 too.
    """
    require_torch("tvmconv bench tutorial")

    from tvmconv.bench.report import versions
    from tvmconv.bench.tuning.tutorial import SOURCE, TABLES, measure_tables
    from tvmconv.targets import backend_of, device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    if not backend_of(resolved).on_gpu:
        raise InvalidArgumentError("target", target, "a CUDA target: the tutorial is about GPUs")
    device_of(resolved)
    rows = measure_tables(resolved, rounds)
    device, packages = device_facts(resolved.kind.name), versions(resolved.kind.name)
    if as_json:
        tables = [
            {"title": title, "rows": [_record(entry, rows[entry.workload]) for entry in entries]}
            for title, entries in TABLES.items()
        ]
        facts = {"device": device, "versions": packages, "rounds": rounds, "tutorial": SOURCE}
        print_json({**facts, "tables": tables})
        return
    for title, entries in TABLES.items():
        click.echo(f"{title}, µs")
        print_table(HEADERS, [_cells(entry, rows[entry.workload]) for entry in entries])
        click.echo()
    for row in rows.values():
        for name, reason in row.failed.items():
            note(f"{name} on {row.workload}: {reason}")
    click.echo(f"* {SOURCE}")
    click.echo(f"the others: {conditions(device, packages, rounds)}")


def _cells(entry: Entry, row: Row) -> list[object]:
    config = entry.config
    times = _times(entry, row)
    this, ours, pytorch = times["config"], times["tvmconv"], times.get("pytorch")
    return [
        row.workload,
        f"{config.block_y}x{config.block_x}",
        f"{config.threads_y}x{config.threads_x}",
        f"{config.vthreads_y}x{config.vthreads_x}",
        entry.tensorflow or "",
        entry.tvm,
        1e6 * this.median,
        f"{1e6 * this.low:.2f}-{1e6 * this.high:.2f}",
        1e6 * ours.median,
        1e6 * pytorch.median if pytorch else "",
        1e6 * row.limit,
        pytorch.median / this.median if pytorch else "",
        pytorch.median / ours.median if pytorch else "",
    ]


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
