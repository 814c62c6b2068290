"""Functions that the commands under `tvmconv bench` share, and the printing of a report by `tvmconv bench suite`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, TypeVar

import click

from tvmconv.problem.errors import MissingPackageError, RegressionError
from tvmconv.support.store import write_whole

from ..console import json_document, print_table

if TYPE_CHECKING:
    from tvmconv.bench.report import Change, Report, Row
    from tvmconv.bench.timing import Timing
    from tvmconv.targets import DeviceFacts

T = TypeVar("T")


def require_torch(command: str) -> None:
    """Raise `MissingPackageError` where torch, which a command measures beside, is not installed."""
    if find_spec("torch") is None:
        raise MissingPackageError("torch", "torch", command)


def collect(rows: Iterable[T]) -> tuple[list[T], BaseException | None]:
    """Return all rows, or those before the error or Ctrl-C that ended them, and that: it must not cost a long run."""
    found: list[T] = []
    try:
        found.extend(rows)
    except (Exception, KeyboardInterrupt) as ended:
        return found, ended
    return found, None


def kept(rows: Iterable[T], path: Path, report: Callable[[list[T]], object]) -> Iterator[T]:
    """Yield rows; with each the file has the report of all until then, whole, whatever ends the run."""
    found: list[T] = []
    for row in rows:
        found.append(row)
        write_whole(path, json_document(report(found)))
        yield row


def conditions(device: DeviceFacts | None, versions: Mapping[str, str], rounds: int, cache: str = "warm") -> str:
    """Describe the conditions that figures depend on, in a line."""
    packages = ", ".join(f"{package} {version}" for package, version in versions.items())
    return f"{device}, {cache} caches, medians of {rounds} rounds; {packages}"


def print_report(report: Report) -> None:
    """Print a table for each suite, with its geometric means and absent peers, and the means over all suites."""
    click.echo(conditions(report.device, report.versions, report.rounds, report.cache))
    suites = list(dict.fromkeys(row.suite for row in report.rows))
    for suite in suites:
        rows = [row for row in report.rows if row.suite == suite]
        click.echo(f"\n{suite}")
        _print_rows(rows)
        _print_means(rows)
        _print_memory(rows)
        print_code(rows)
        _print_absent(rows)
    if len(suites) > 1:
        click.echo("\nall suites")
        _print_means(report.rows)


def _print_rows(rows: Sequence[Row]) -> None:
    """Print ratios to tvmconv, or times where tvmconv has not all of the rows."""
    peers = _peers(rows)
    if all(row.ours for row in rows):
        headers = ["name", "µs", "spread", "GFLOP/s", "GB/s", "copy, µs", "% of copy", *(f"x {peer}" for peer in peers)]
        print_table(headers, [[*_ours(row), *(_cell(row.times_faster(peer)) for peer in peers)] for row in rows])
        return
    contenders = [name for name in ("tvmconv", *peers) if any(name in row.times for row in rows)]
    print_table(
        ["name", "copy, µs", *(f"{name}, µs" for name in contenders)],
        [
            [row.name, _micro(row.limit)]
            + [_micro(row.times[name].median) if name in row.times else "" for name in contenders]
            for row in rows
        ],
    )


def _ours(row: Row) -> list[object]:
    assert row.ours is not None
    seconds = row.ours.median
    return [
        row.name,
        _micro(seconds),
        _spread(row.ours),
        row.flops / seconds / 1e9,
        row.bytes / seconds / 1e9,
        _micro(row.limit),
        100 * row.limit / seconds,
    ]


def _print_means(rows: Sequence[Row]) -> None:
    from tvmconv.bench.report import geometric_means

    ours = [row.limit / row.ours.median for row in rows if row.ours]
    if not ours:
        return
    means = [f"{100 * geometric_mean(ours):.3g}% of copy ({len(ours)})"]
    means += [f"{mean:.3g} x {peer} ({count})" for peer, (mean, count) in geometric_means(rows, _peers(rows)).items()]
    click.echo(f"geometric means (of so many): {', '.join(means)}")


def _print_memory(rows: Sequence[Row]) -> None:
    """Print bytes beside operands and output, and how much less tvmconv and its algorithms take than others in all."""
    from tvmconv.bench.report import memory_means

    measured = [(row, row.memory) for row in rows if row.memory is not None]
    if not measured:
        return
    formulas = list(dict.fromkeys(name for _, memory in measured for name in memory.formulas))
    contenders = list(dict.fromkeys(name for _, memory in measured for name in memory.measured))
    click.echo("\nMB beside operands and output: by formula (*), and measured")
    print_table(
        ["name", "operands and output", *(f"{name}*" for name in formulas), *contenders],
        [
            [row.name, row.bytes / 1e6, *(memory.formulas[name] / 1e6 for name in formulas)]
            + [memory.measured[name] / 1e6 if name in memory.measured else "" for name in contenders]
            for row, memory in measured
        ],
    )
    others = [name for name in contenders if not name.startswith("tvmconv")]
    for ours in (name for name in contenders if name.startswith("tvmconv")):
        means = memory_means(rows, ours, others).items()
        found = [f"{100 * abs(share - 1):.3g}% {_less(share)} than {peer} ({count})" for peer, (share, count) in means]
        if found:
            click.echo(f"{ours} takes, operands and output included, on average (of so many): {', '.join(found)}")


def print_code(rows: Sequence[Row]) -> None:
    """Print the size of the code that the weights of sparse kernels were compiled into."""
    found = [(row.name, row.code) for row in rows if row.code is not None]
    if not found:
        return
    click.echo("\nmultiply-adds of a thread, and the code")
    print_table(
        ["name", "% zeros", "non-zeros", "template", "removed", "left", "instructions", "PTX, KB", "cubin, KB"],
        [
            [
                name,
                100 * code.sparsity,
                code.nonzeros,
                code.template,
                code.removed,
                code.left,
                code.instructions,
                code.ptx_bytes / 1000,
                code.cubin_bytes / 1000,
            ]
            for name, code in found
        ],
    )


def _print_absent(rows: Sequence[Row]) -> None:
    """Print the peers that took no part, or failed, and in which rows if not in all."""
    reasons = defaultdict[str, list[str]](list)
    for row in rows:
        for kind, absent in (("skipped", row.skipped), ("failed", row.failed)):
            for peer, reason in absent.items():
                reasons[f"{peer} {kind}: {reason}"].append(row.name)
    for reason, names in reasons.items():
        click.echo(reason if len(names) == len(rows) else f"{reason} ({', '.join(names)})")


def print_changes(changes: Sequence[Change]) -> None:
    """Print tvmconv's times before and now."""
    click.echo("\ncompared with the older report")
    print_table(
        ["suite", "name", "µs before", "spread", "µs now", "spread", "now / before"],
        [
            [
                change.suite,
                change.name,
                _micro(change.old.median),
                _spread(change.old),
                _micro(change.new.median),
                _spread(change.new),
                change.ratio,
            ]
            for change in changes
        ],
    )
    mean = geometric_mean(change.ratio for change in changes)
    click.echo(f"geometric mean of {len(changes)}: {mean:.3g} times as long as before")


def require_no_regression(changes: Sequence[Change], allowed: float) -> None:
    """Raise `RegressionError` with the workloads that take longer than before by more than the allowed share."""
    slower = [change for change in changes if change.is_regression(allowed)]
    if slower:
        rows = ", ".join(
            f"{change.name} ({_micro(change.new.median)} µs, before {_micro(change.old.median)})" for change in slower
        )
        raise RegressionError(f"slower than before by more than {100 * allowed:g}%: {rows}")


def _peers(rows: Sequence[Row]) -> list[str]:
    """Return the peers that have run on a row, in their order."""
    from tvmconv.bench.peers import known_peers

    return [name for name in known_peers() if any(name in row.times for row in rows)]


def _less(share: float) -> str:
    return "less" if share <= 1 else "more"


def _micro(seconds: float) -> float:
    """Return microseconds in four digits, or whole ones."""
    micro = 1e6 * seconds
    return round(micro) if micro >= 1000 else float(f"{micro:.4g}")


def _spread(timing: Timing) -> str:
    return f"{_micro(timing.low)}-{_micro(timing.high)}"


def _cell(ratio: float | None) -> float | str:
    return "" if ratio is None else ratio
