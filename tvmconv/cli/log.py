"""The command `tvmconv log`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmconv.support.store import write_whole

from .console import count, note, print_json, print_table
from .options import INPUT_FILE, JSON, argument, command, option, output, plot

if TYPE_CHECKING:
    from tvmconv.autotvm.tidy import Made
    from tvmconv.dispatch.record import Log, Record

STATUSES = ("ok", "build error", "build timeout", "runtime error", "crash", "run timeout", "wrong answer")

LOG_FILE = argument(metavar="LOG", type=INPUT_FILE)
LOG_FILES = argument(metavar="LOG...", type=INPUT_FILE, nargs=-1, required=True)
ELSEWHERE = output("Write to OUT, and leave LOG as it is.", metavar="OUT")


@command()
def best(paths: tuple[Path, ...] = LOG_FILES, as_json: bool = JSON) -> None:
    """Show the best configurations.

    There is one for each workload, target and device, as measured again at the end of its tuning. It is compared with
    the default configuration where the log has that too. Records of different versions of TVM or of a schedule do not
    compete.
    """
    from tvmconv.autotvm.tidy import by_making, default_record
    from tvmconv.dispatch.history import best_record

    rows: list[list[object]] = []
    found: list[Record] = []
    held = [record for path in paths for record in opened(path).records]
    for made, records in by_making(held).items():
        record, default = best_record(records), default_record(records)
        if record is None:
            continue
        found.append(record)
        gain = None if default is None else default.cost / record.cost
        rows.append([*making(made), 1e6 * record.cost, gain, knobs_text(record)])
    if as_json:
        print_json({"records": found})
    elif rows:
        print_table(["workload", "schedule", "for", "device", "TVM", "µs", "times default", "configuration"], rows)
    else:
        note("no trial worked: `tvmconv log show` lists the trials")


@command()
def show(
    path: Path = LOG_FILE,
    workload: str | None = option("Show only workloads with this in their description.", metavar="TEXT"),
    status: str | None = option("Show only trials with this result.", type=click.Choice(STATUSES)),
    plot: Path | None = plot("Draw the best time so far, trial by trial."),
    as_json: bool = JSON,
) -> None:
    """List trials, and count them.

    The counts are of how the trials ended, of devices, and of versions.
    """
    from tvmconv.autotvm.tidy import best_so_far, by_making
    from tvmconv.bench.html.charts import below_each_other
    from tvmconv.bench.html.logs import convergence

    held = opened(path)
    records = [record for record in held.records if workload is None or workload in str(record.problem)]
    if plot is not None:
        runs = {", ".join(map(str, making(made))): best_so_far(same) for made, same in by_making(records).items()}
        if chart := convergence(runs):
            write_whole(plot, below_each_other([chart], []).encode())
    records = [record for record in records if status is None or record.status.value == status]
    counts = Counter(record.status.value for record in records)
    devices = Counter(str(record.device) for record in records)
    versions = Counter(versions_text(record) for record in records)
    if as_json:
        summary = {"statuses": counts, "devices": devices, "versions": versions, "skipped": held.skipped}
        print_json({"records": records, "under_way": held.under_way, **summary})
        return
    if not records:
        note(
            f"{path}: no records"
            if not held.records
            else f"{path}: none of {len(held.records)} records has that workload and status"
        )
        return
    print_table(
        ["#", "workload", "stage", "status", "µs", "configuration", "reason"],
        [
            [number, str(record.problem), record.stage.value, record.status.value, *_ended(record)]
            for number, record in enumerate(records, 1)
        ],
    )
    for title, counted in (("records", counts), ("devices", devices), ("versions", versions)):
        click.echo(f"{title}: {'; '.join(f'{number} {what}' for what, number in counted.most_common())}")
    for record in held.under_way:
        click.echo(f"never ended: {record.problem}, {knobs_text(record)}")


@command()
def merge(
    paths: tuple[Path, ...] = LOG_FILES, output: Path = output("The log to write.", metavar="OUT"), as_json: bool = JSON
) -> None:
    """Put several logs together.

    OUT has the records of all of them, each once, in the order of time; what it had before stays in it.
    """
    from tvmconv.autotvm.tidy import merged

    logs = [opened(path) for path in paths]
    write(output, lambda there: merged([there, *logs]), sum(len(held.records) for held in logs), as_json)


@command()
def prune(path: Path = LOG_FILE, output: Path | None = ELSEWHERE, as_json: bool = JSON) -> None:
    """Drop records that cannot be used.

    They are trials that failed or have no end, and records of other versions of TVM or of a schedule. Records of
    schedules that are not known here, such as those that your own program registers, are kept. `tvmconv tune` forgets
    failures, and may try them again.
    """
    from tvmconv.autotvm.tidy import pruned, unknown

    for name, number in unknown(tidy(path, output, pruned, as_json)).items():
        note(f"{path}: kept {count(number, 'record')} of {name}, which is no schedule of tvmconv")


@command()
def compact(path: Path = LOG_FILE, output: Path | None = ELSEWHERE, as_json: bool = JSON) -> None:
    """Keep the records that decide.

    They are those of the best configurations, and of the default, to show the gain. `tvmconv log best` shows the
    same afterwards. `tvmconv tune` would begin its search anew.
    """
    from tvmconv.autotvm.tidy import compacted

    tidy(path, output, compacted, as_json)


@click.group(commands=[best, show, merge, prune, compact])
def log() -> None:
    """Look into tuning logs, and tidy them.

    Logs are plain or have a name that ends in .gz. A file is replaced whole or not at all, and `tvmconv tune` may be
    adding to it meanwhile.
    """


def tidy(path: Path, output: Path | None, kept: Callable[[Log], list[Record]], as_json: bool) -> Sequence[Record]:
    """Replace a log by the records of it that are kept, or write them elsewhere; return those that were written."""
    held = opened(path)
    return write(output or path, kept if output is None else lambda there: kept(held), len(held.records), as_json)


def write(path: Path, content: Callable[[Log], list[Record]], read: int, as_json: bool) -> Sequence[Record]:
    """Write the content to a log, print how many of the records that were read it has, and return them."""
    from tvmconv.autotvm.tidy import rewrite

    written = rewrite(path, content)
    if as_json:
        print_json({"file": str(path), "read": read, "written": len(written)})
    else:
        click.echo(f"{path}: {len(written)} records of {read}")
    return written


def opened(path: Path) -> Log:
    """Read the log in a file, which has to be one; say how many lines are no records."""
    from tvmconv.autotvm.tidy import readable

    held = readable(path)
    tell_skipped(path, held.skipped)
    return held


def tell_skipped(path: Path, skipped: Mapping[str, int]) -> None:
    """Say how many lines of a log are no records, if any."""
    from tvmconv.dispatch.record import skipped_text

    if skipped:
        note(f"{path}: {skipped_text(skipped)}")


def making(made: Made) -> list[object]:
    """Describe the making of a kernel: workload, schedule, target, device, version of TVM."""
    return [str(made.problem), f"{made.template} {made.version}", made.processor, made.device, made.tvm]


def _ended(record: Record) -> list[object]:
    return [1e6 * record.cost, knobs_text(record), record.reason]


def versions_text(record: Record) -> str:
    return f"{record.template} {record.versions.template}, tvmconv {record.versions.tvmconv}, TVM {record.tvm_version}"


def knobs_text(record: Record) -> str:
    """Return a configuration in one line."""
    return " ".join(f"{name}={value}" for name, value in record.knobs.items())
