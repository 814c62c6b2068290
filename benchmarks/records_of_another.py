"""The gain from another device's records on this one: its best configurations beside the defaults, both measured here.

    python benchmarks/records_of_another.py LOG [--target cuda] [--rounds 3] [--threads N] [-o MEASURED]

LOG holds the other device's records, such as tuning_logs/nvidia-h100-80gb-hbm3.jsonl. Prints how many times as long the
default takes for each problem of LOG that the target can compute, the geometric mean and how many are slower than the
default; and the same for those that would serve here as records of a sibling, where that is what the device is.
MEASURED gets what was measured, as records of this device.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from statistics import geometric_mean, median

import click
import msgspec

import tvmconv
from tvmconv import autotvm
from tvmconv.autotvm.measure import MeasureInput, MeasureOption, Stage
from tvmconv.autotvm.record import Log, Record, append, load_from_file
from tvmconv.autotvm.task import Task
from tvmconv.autotvm.tidy import by_making
from tvmconv.cli.console import print_table
from tvmconv.dispatch import template_named
from tvmconv.dispatch.history import History, best_record
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target


@click.command()
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--target", default="llvm")
@click.option("--rounds", default=3, help="How often each configuration is measured, in turn with the others.")
@click.option("--threads", type=int, help="On a CPU.  [default: one for each physical core]")
@click.option("--template", "wanted", help="Only problems of this template, such as cpu/depthwise.")
@click.option("--threads-there", type=int, help="Only records that were made with so many threads.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A log to add the records to.")
def main(
    log: Path,
    target: str,
    rounds: int,
    threads: int | None,
    wanted: str | None,
    threads_there: int | None,
    output: Path | None,
) -> None:
    if threads is not None:
        tvmconv.set_num_threads(threads)
    records = load_from_file(log).records
    chosen = [
        record
        for record in records
        if wanted in (None, record.template) and threads_there in (None, record.device.threads)
    ]
    groups, history = by_making(chosen), History(Log(chosen), str(log))
    rows, option = [], autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    with closing(option):
        for made, same in groups.items():
            best = best_record(same)
            if best is None or not isinstance(made.problem, Problem):
                continue
            if resolve_target(target).kind.name != resolve_target(best.target).kind.name:
                continue
            # The algorithm, as the command line has it: the part of the template's name behind the target.
            algorithm = "auto" if made.problem.sparsity is not None else made.template.rpartition("/")[2]
            task = autotvm.create(
                made.problem.workload, target, algorithm, made.problem.sparsity, made.problem.precision
            )
            template = template_named(made.template)
            tuned = msgspec.convert(best.knobs, template.Config)
            used = history.best_of_sibling(made.problem, task.target, template, option.device(task))
            measured = compare(task, tuned, rounds, option)
            if output is not None:
                append(output, measured)
            default, ours = (cost(measured, config) for config in (task.space.default, tuned))
            serves = "yes" if used == best else "no"
            rows.append((str(made.problem), made.template, best.device.threads, serves, default, ours, default / ours))
            print(f"{rows[-1][-1]:.3f} {made.problem}", file=sys.stderr)
    rows.sort(key=lambda row: row[-1])
    print_table(
        ["problem", "template", "threads there", "serves", "default µs", "record µs", "times"],
        [[*row[:4], 1e6 * row[4], 1e6 * row[5], row[6]] for row in rows],
    )
    tell("all", [row[-1] for row in rows])
    tell("those that serve", [row[-1] for row in rows if row[3] == "yes"])


def tell(which: str, times: list[float]) -> None:
    """Print the geometric mean of the ratio of the default's time to a record's."""
    mean = f"geometric mean {geometric_mean(times):.3f}, " if times else ""
    print(f"{which}: {mean}{len(times)} problems, {sum(each < 1 for each in times)} slower than the default")


def compare(task: Task, tuned: object, rounds: int, option: MeasureOption) -> list[Record]:
    """Return records of the default and of another configuration, measured in turn."""
    configs = [task.space.default] + ([tuned] if tuned != task.space.default else [])
    inputs = [MeasureInput(task.target, task, config, Stage.CONFIRM) for config in configs * rounds]
    measured = option.measure(inputs, lambda trial: None)
    return [Record.of(trial, result) for trial, result in measured]


def cost(records: list[Record], config: object) -> float:
    """Return the seconds of a call with a configuration, infinite where it failed."""
    return median(record.cost for record in records if record.knobs == msgspec.to_builtins(config))


if __name__ == "__main__":
    main()
