"""The command `tvmconv tune`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmconv.problem import FORWARD, workload_from
from tvmconv.problem.dtypes import DTYPES
from tvmconv.problem.errors import InvalidArgumentError, NoValidConfigurationError
from tvmconv.problem.precision import DEFAULT

from ..console import note, progress
from ..interrupts import interrupts
from ..options import (
    INPUT_FILE,
    POSITIVE,
    Algorithm,
    OutputFile,
    Seconds,
    Shapes,
    address,
    direction_option,
    input_shapes_option,
    json_option,
    network_precision_option,
    target_option,
)
from .report import never_worked, print_plan, print_summaries, tell_log

if TYPE_CHECKING:
    from tvmconv.autotvm.measure.protocol import MeasureOption
    from tvmconv.autotvm.task import ConvTask

FINISHING = b"finishing the trial under way; Ctrl-C again ends at once\n"


def numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> frozenset[int] | None:
    """Parse the numbers in text such as "1,3-5"."""
    if value is None:
        return None
    found: set[int] = set()
    for part in value.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        span = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not span:
            raise click.BadParameter(f"{value!r} is not of the form 1,3-5", ctx, param)
        found.update(span)
    return frozenset(found)


def device_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse the numbers in text such as "0,1", in order."""
    found = numbers(ctx, param, value)
    return None if found is None else tuple(sorted(found))


@dataclass(frozen=True)
class Measuring:
    """The options that say how a trial is measured, and where."""

    number: int
    repeat: int
    min_repeat_ms: int
    timeout: float
    parallel: int | None
    devices: tuple[int, ...] | None
    rpc_tracker: tuple[str, int] | None
    rpc_key: str | None

    def option(self) -> MeasureOption:
        """Return the builder and the runner that measure so."""
        from tvmconv.autotvm.measure import measure_option
        from tvmconv.autotvm.measure.builder import LocalBuilder
        from tvmconv.autotvm.measure.runner import LocalRunner
        from tvmconv.autotvm.rpc.runner import RPCRunner

        how: dict[str, Any] = {
            "timeout": self.timeout,
            "number": self.number,
            "repeat": self.repeat,
            "min_repeat_ms": self.min_repeat_ms,
        }
        if self.rpc_tracker is None or self.rpc_key is None:
            return measure_option(LocalBuilder(n_parallel=self.parallel), LocalRunner(**how, devices=self.devices))
        host, port = self.rpc_tracker
        return measure_option(LocalBuilder(n_parallel=self.parallel), RPCRunner(self.rpc_key, host, port, **how))


@click.command()
@click.argument("model", type=INPUT_FILE, required=False)
@click.option("--suite", metavar="NAME", help="Tune the workloads of a suite instead of a model's.")
@click.option("--workload", metavar="JSON", help="Tune one workload instead.")
@click.option("--batch", type=POSITIVE, help="With --suite: another batch size.")
@click.option("--dtype", type=click.Choice(DTYPES), help="With --suite.  [default: float32]")
@click.option(
    "--algorithm",
    type=Algorithm(),
    default="auto",
    help="The algorithm to tune where it applies, such as direct; auto, and elsewhere: as without records.",
)
@click.option(
    "--sparsity",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="S",
    help="Tune sparse kernels, for weights with this share of zeros at random places.",
)
@network_precision_option
@direction_option
@click.option(
    "--tasks", "only", callback=numbers, metavar="1,3-5", help="Tune only these tasks, as --dry-run numbers them."
)
@click.option("-o", "--output", "log", type=OutputFile(), required=True, metavar="LOG", help="The log to append to.")
@target_option
@input_shapes_option
@click.option(
    "--trials", type=POSITIVE, default=1000, help="The trials in all, including those that LOG has; shared equally."
)
@click.option(
    "--time-budget", type=Seconds(), metavar="SECONDS", help="The seconds for the searches of this run, shared equally."
)
@click.option(
    "--tuner", type=click.Choice(["xgb", "ga", "random", "grid"]), default="xgb", help="The tuner that searches."
)
@click.option("--early-stopping", type=POSITIVE, metavar="N", help="Leave a task after N trials without a better one.")
@click.option("--number", type=POSITIVE, default=10, help="The least number of calls in a repeat.")
@click.option("--repeat", type=POSITIVE, default=5, help="The repeats of a trial.")
@click.option(
    "--min-repeat-ms",
    type=click.IntRange(min=0),
    default=10,
    help="The least time of a repeat in ms; calls are added until it is reached.",
)
@click.option("--timeout", type=Seconds(), default=10.0, help="The seconds that a run may take.")
@click.option("--parallel", type=POSITIVE, help="The number of builds at once.  [default: one a core]")
@click.option(
    "--devices",
    callback=device_numbers,
    metavar="0,1",
    help="The GPUs to measure on, several at once.  [default: all like the first]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="The seed of the search.")
@click.option("--dry-run", is_flag=True, help="List the tasks, their spaces and the trials to do; measure nothing.")
@click.option(
    "--rpc-tracker", callback=address, metavar="HOST:PORT", help="Measure on the servers of `tvmconv rpc tracker`."
)
@click.option("--rpc-key", metavar="KEY", help="With --rpc-tracker: the servers' key.")
@json_option
def tune(
    model: Path | None,
    suite: str | None,
    workload: str | None,
    batch: int | None,
    dtype: str | None,
    algorithm: str,
    sparsity: float | None,
    precision: str,
    direction: str,
    only: frozenset[int] | None,
    log: Path,
    target: str,
    shapes: Shapes | None,
    trials: int,
    time_budget: float | None,
    tuner: str,
    early_stopping: int | None,
    seed: int,
    dry_run: bool,
    as_json: bool,
    **measuring: Any,
) -> None:
    """Find fast configurations for the convolutions of MODEL, an ONNX or .pt2 file, and log every trial.

    For a GPU those of its attention and its gates too.

    Trials that LOG already has of a task on this device count, so the same command goes on where it was ended, in
    whatever way. Ctrl-C finishes the trial under way and prints the results; a second one ends at once. The default
    configuration is measured too, and it and the best few again at the end: the best is never slower than the default.
    A gradient by the input with a stride of 1 is a convolution, and is tuned as one.
    """
    how = Measuring(**measuring)
    if sum(source is not None for source in (model, suite, workload)) != 1:
        raise click.UsageError("give exactly one of MODEL, --suite and --workload")
    for flag, value in {"--batch": batch, "--dtype": dtype}.items():
        if value is not None and suite is None:
            raise click.UsageError(f"{flag} goes with --suite")
    if shapes is not None and model is None:
        raise click.UsageError("--input-shapes goes with MODEL")
    if sparsity is not None and algorithm != "auto":
        raise click.UsageError("--algorithm goes with dense weights")
    if sparsity is not None and precision != DEFAULT:
        raise click.UsageError("--precision goes with dense weights")
    if direction != FORWARD and (model is not None or sparsity is not None):
        raise click.UsageError("--direction goes with --workload and --suite, and dense weights")
    if (how.rpc_tracker is None) != (how.rpc_key is None):
        raise click.UsageError("--rpc-tracker and --rpc-key go together")
    if how.devices is not None and how.rpc_tracker is not None:
        raise click.UsageError("--devices goes without --rpc-tracker: `tvmconv rpc server --device` chooses them there")

    from tvmconv.autotvm.session import tune_tasks
    from tvmconv.autotvm.tidy import require_appendable
    from tvmconv.targets import device_facts

    require_appendable(log)
    found = find_tasks(
        model, suite, workload, batch, dtype or "float32", target, algorithm, sparsity, precision, direction, shapes
    )
    chosen = {number: task for number, task in enumerate(found, 1) if only is None or number in only}
    if only is not None and (absent := only - chosen.keys()):
        raise InvalidArgumentError("tasks", min(absent), f"numbers from 1 to {len(found)}, as --dry-run lists them")
    tasks = list(chosen.values())
    if dry_run:
        number = how.devices[0] if how.devices else 0
        device = None if how.rpc_tracker else device_facts(tasks[0].target.kind.name, number)
        tell_log(log, tasks, device)
        print_plan(chosen, log, device, trials, as_json)
        return

    with closing(how.option()) as option, interrupts(lambda: os.write(2, FINISHING)) as pressed:
        device = option.device(tasks[0])
        tell_log(log, tasks, device)
        note(f"measuring on {device}: medians of repeated calls on the same arrays, so caches are warm, a GPU's L2 too")
        summaries = tune_tasks(
            tasks,
            log,
            option,
            tuner=tuner,
            trials=trials,
            early_stopping=early_stopping,
            time_budget=time_budget or inf,
            seed=seed,
            stop=lambda: bool(pressed),
        )
    print_summaries(dict(zip(chosen, summaries, strict=True)), log, device, as_json)
    if pressed:
        note(f"to go on: {shlex.join(['tvmconv', *sys.argv[1:]])}")
        raise KeyboardInterrupt
    if broken := [number for number, summary in zip(chosen, summaries, strict=True) if never_worked(summary)]:
        raise NoValidConfigurationError(
            f"no trial of task {', '.join(map(str, broken))} worked; `tvmconv log show {log}`"
        )


def find_tasks(
    model: Path | None,
    suite: str | None,
    workload: str | None,
    batch: int | None,
    dtype: str,
    target: str,
    algorithm: str,
    sparsity: float | None,
    precision: str,
    direction: str,
    shapes: Shapes | None,
) -> list[ConvTask]:
    """Return the tasks of the one source that is given."""
    from tvmconv.autotvm import task
    from tvmconv.network import import_model

    if suite is not None:
        return task.extract_from_suite(suite, target, batch, dtype, algorithm, sparsity, precision, direction)
    if workload is not None:
        return [task.create(workload_from(workload), target, algorithm, sparsity, precision, direction)]
    assert model is not None
    with progress(f"importing {model.name}"):
        imported = import_model(model, shapes=shapes)
        tasks = task.extract_from_model(imported, target, algorithm, sparsity, precision)
    if not tasks:
        expected = "a model with a convolution that tvmconv has a kernel for; `tvmconv tasks` lists them"
        raise InvalidArgumentError("MODEL", str(model), expected)
    return tasks
