"""The command `tvmconv bench defaults`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click

from tvmconv.problem.errors import InvalidArgumentError, NoValidConfigurationError

from ..console import note, print_json, print_table
from ..interrupts import interrupts
from ..log import knobs_text
from ..options import DTYPE, JSON, PRECISION, SEED, TARGET, command, option, output
from ..tune.report import FINISHING, raise_if_pressed, tell_log

if TYPE_CHECKING:
    from tvmconv.bench.tuning.defaults import Gap

WORST = 10
"""The number of workloads that the table shows."""


@command()
def defaults(
    target: str = TARGET,
    workloads: int = option("The number of workloads; a longer list begins with the same.", default=100),
    dense: bool = option("Take convolutions whose channels meet, some in groups, for depthwise ones."),
    dtype: str = option("The type; the shapes are the same for each.", type=DTYPE, default="float32"),
    precision: str = PRECISION,
    all_algorithms: bool = option("Tune each algorithm: the best may be of another than the default."),
    trials: int = option("Trials of each workload and algorithm, including those that LOG has.", default=32),
    seed: int = SEED,
    output: Path = output("The log to append to.", metavar="LOG"),
    as_json: bool = JSON,
) -> None:
    """Compare default configurations with tuned ones, over random workloads.

    Each workload is tuned, by the algorithm that is taken where nothing has been measured, and its default and its best
    few configurations are measured again at the end. The report has the ratio of the default's time to the best one's:
    the geometric mean, the quantiles, and the worst workloads. Workloads that no algorithm of the target takes are left
    out, and counted. Trials that small spaces leave over go to the others. The same command goes on where it was ended,
    as `tvmconv tune` does.
    """
    from tvmconv import autotvm
    from tvmconv.autotvm.session import tune_tasks
    from tvmconv.bench.tuning.defaults import gaps, random_workloads, tasks_of
    from tvmconv.dispatch.record import load_from_file

    tasks = [
        task
        for workload in random_workloads(workloads, seed, dense, dtype)
        for task in tasks_of(workload, target, precision, all_algorithms)
    ]
    if not tasks:
        kind = "dense" if dense else "depthwise"
        expected = f"a type of {kind} convolutions that an algorithm takes on {target}"
        raise InvalidArgumentError("dtype", dtype, expected)
    option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    with closing(option), interrupts(lambda: os.write(2, FINISHING)) as pressed:
        device = option.device(tasks[0])
        tell_log(output, tasks, device)
        tune_tasks(tasks, output, option, trials=trials * len(tasks), seed=seed, stop=lambda: bool(pressed))
    found = gaps(tasks, load_from_file(output).records, device)
    taken = dict.fromkeys(task.workload for task in tasks)
    facts = {"device": device, "target": str(tasks[0].target), "workloads": workloads, "trials": trials, "seed": seed}
    facts |= {"left_out": workloads - len(taken), "dense": dense, "dtype": dtype, "precision": precision}
    report(found, facts, as_json)
    raise_if_pressed(pressed)
    measured = {gap.workload for gap in found}
    if failed := [each for each in taken if each not in measured]:
        raise NoValidConfigurationError(
            f"the default configuration failed on {len(failed)} of {len(taken)} workloads, the first of them "
            f"{failed[0]}; `tvmconv log show {output}`"
        )


def report(found: Sequence[Gap], facts: dict[str, Any], as_json: bool) -> None:
    """Print how far the defaults are from the best, the worst first."""
    from tvmconv.bench.tuning.defaults import quantiles

    if not found:
        note("nothing was measured to the end")
        return
    times = [gap.times for gap in found]
    mean, shares = geometric_mean(times), quantiles(times)
    if as_json:
        rows = [_record(gap) for gap in found]
        print_json({**facts, "geometric_mean": mean, "quantiles": shares, "rows": rows})
        return
    print_table(
        ["workload", "space", "default µs", "best µs", "times", "default configuration", "best configuration"],
        [
            [str(gap.workload), gap.space, 1e6 * gap.default.cost, 1e6 * gap.best.cost, gap.times]
            + [f"{record.template} {knobs_text(record)}" for record in (gap.default, gap.best)]
            for gap in found[:WORST]
        ],
    )
    alone = sum(gap.space == 1 for gap in found)
    click.echo(
        f"times as long as the best, over {len(found)} workloads on {facts['device']}: geometric mean {mean:.3f}, "
        f"{', '.join(f'{share} {value:.3f}' for share, value in shares.items())}; "
        f"{alone} have the default configuration alone"
        + (f"; {facts['left_out']} are left out, since no algorithm takes them" if facts["left_out"] else "")
    )


def _record(gap: Gap) -> dict[str, object]:
    both = {"default": gap.default, "best": gap.best}
    return {
        "workload": gap.workload,
        "space": gap.space,
        **{f"{which}_seconds": record.cost for which, record in both.items()},
        "times": gap.times,
        **{f"{which}_template": record.template for which, record in both.items()},
        **{which: record.knobs for which, record in both.items()},
    }
