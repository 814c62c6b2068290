"""The command `tvmconv tune`."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmconv.problem import FORWARD, workload_from
from tvmconv.problem.errors import InvalidArgumentError, NoValidConfigurationError
from tvmconv.problem.precision import DEFAULT

from ..console import note, progress
from ..interrupts import interrupts
from ..options import (
    ADDRESS,
    DIRECTION,
    DTYPE,
    INPUT_FILE,
    INPUT_SHAPES,
    JSON,
    NETWORK_PRECISION,
    SEED,
    SHARE,
    TARGET,
    Parsed,
    Seconds,
    Shapes,
    algorithm,
    argument,
    command,
    matched,
    option,
    output,
)
from .report import FINISHING, never_worked, print_plan, print_summaries, raise_if_pressed, tell_log

if TYPE_CHECKING:
    from tvmconv.autotvm.measure.protocol import MeasureOption
    from tvmconv.autotvm.task import ConvTask


def numbers(text: str) -> tuple[int, ...]:
    """Parse the numbers in text such as "1,3-5", and return them in order."""
    found: set[int] = set()
    for part in text.split(","):
        match = matched(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        span = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not span:
            raise ValueError(text)
        found.update(span)
    return tuple(sorted(found))


NUMBERS = Parsed("numbers", numbers, "is not of the form 1,3-5")


@dataclass(frozen=True)
class Source:
    """The options that say what is tuned."""

    model: Path | None = argument(type=INPUT_FILE, required=False)
    suite: str | None = option("Tune the convolutions of one of tvmconv's suites instead of a model's.", metavar="NAME")
    workload: str | None = option(
        "Tune one convolution instead, described as by `ConvWorkload.to_json`.", metavar="JSON"
    )
    batch: int | None = option("With --suite: another batch size.")
    dtype: str | None = option("With --suite: the type of elements.  [default: float32]", type=DTYPE)
    algorithm: str = algorithm(
        "The algorithm to tune, such as direct, where it can compute a convolution; elsewhere, and with auto, the one "
        "that is used without tuning."
    )
    sparsity: float | None = option(
        "Tune kernels for pruned weights, which have this share of zeros at random positions.", type=SHARE, metavar="S"
    )
    precision: str = NETWORK_PRECISION
    direction: str = DIRECTION
    target: str = TARGET
    shapes: Shapes | None = INPUT_SHAPES

    def require_usable(self) -> None:
        """Raise an error for options that do not go together."""
        if sum(source is not None for source in (self.model, self.suite, self.workload)) != 1:
            raise click.UsageError("give exactly one of MODEL, --suite and --workload")
        is_sparse, another_direction = self.sparsity is not None, self.direction != FORWARD
        for is_wrong, words in (
            (self.batch is not None and self.suite is None, "--batch goes with --suite"),
            (self.dtype is not None and self.suite is None, "--dtype goes with --suite"),
            (self.shapes is not None and self.model is None, "--input-shapes goes with MODEL"),
            (is_sparse and self.algorithm != "auto", "--algorithm goes with dense weights"),
            (is_sparse and self.precision != DEFAULT, "--precision goes with dense weights"),
            (
                another_direction and (self.model is not None or is_sparse),
                "--direction goes with --workload and --suite, and dense weights",
            ),
        ):
            if is_wrong:
                raise click.UsageError(words)

    def tasks(self) -> list[ConvTask]:
        """Return the tasks of the one source that is given."""
        from tvmconv.autotvm import task
        from tvmconv.network import import_model

        how = self.algorithm, self.sparsity, self.precision
        if self.suite is not None:
            dtype = self.dtype or "float32"
            return task.extract_from_suite(self.suite, self.target, self.batch, dtype, *how, self.direction)
        if self.workload is not None:
            return [task.create(workload_from(self.workload), self.target, *how, self.direction)]
        assert self.model is not None
        with progress(f"importing {self.model.name}"):
            tasks = task.extract_from_model(import_model(self.model, shapes=self.shapes), self.target, *how)
        if not tasks:
            expected = "a model with a convolution that tvmconv has a kernel for; `tvmconv tasks` lists them"
            raise InvalidArgumentError("MODEL", str(self.model), expected)
        return tasks


@dataclass(frozen=True)
class Measuring:
    """The options that say how a trial is measured, and where."""

    number: int = option("The number of calls of a kernel in a repeat, at least.", default=10)
    repeat: int = option("The number of times that a kernel is timed in a trial.", default=5)
    min_repeat_ms: int = option(
        "The least time of a repeat in ms; calls are added until it is reached.", type=click.IntRange(min=0), default=10
    )
    timeout: float = option("The seconds that a run may take.", type=Seconds(), default=10.0)
    parallel: int | None = option("The number of builds at once.  [default: one a core]")
    devices: tuple[int, ...] | None = option(
        "The GPUs to measure on, at the same time.  [default: all of the model of the first]",
        type=NUMBERS,
        metavar="0,1",
    )
    rpc_tracker: tuple[str, int] | None = option(
        "Measure on the servers of `tvmconv rpc tracker`.", type=ADDRESS, metavar="HOST:PORT"
    )
    rpc_key: str | None = option(
        "With --rpc-tracker: the name under which the servers are listed there.", metavar="KEY"
    )

    def require_usable(self) -> None:
        """Raise an error for options that do not go together."""
        if (self.rpc_tracker is None) != (self.rpc_key is None):
            raise click.UsageError("--rpc-tracker and --rpc-key go together")
        if self.devices is not None and self.rpc_tracker is not None:
            there = "`tvmconv rpc server --device` chooses them there"
            raise click.UsageError(f"--devices goes without --rpc-tracker: {there}")

    def option(self) -> MeasureOption:
        """Return the builder and the runner that measure so."""
        from tvmconv.autotvm.measure import measure_option
        from tvmconv.autotvm.measure.builder import LocalBuilder
        from tvmconv.autotvm.measure.runner import LocalRunner
        from tvmconv.autotvm.rpc.runner import RPCRunner

        how: dict[str, Any] = {name: getattr(self, name) for name in ("timeout", "number", "repeat", "min_repeat_ms")}
        builder = LocalBuilder(n_parallel=self.parallel)
        if self.rpc_tracker is None or self.rpc_key is None:
            return measure_option(builder, LocalRunner(**how, devices=self.devices))
        return measure_option(builder, RPCRunner(self.rpc_key, *self.rpc_tracker, **how))


@command()
def tune(
    source: Source,
    how: Measuring,
    only: tuple[int, ...] | None = option(
        "Tune only these tasks, as --dry-run numbers them.", "--tasks", type=NUMBERS, metavar="1,3-5"
    ),
    output: Path = output("The log to append to.", metavar="LOG"),
    trials: int = option(
        "The number of trials of all tasks together, including those that LOG has; shared equally.", default=1000
    ),
    time_budget: float | None = option(
        "The seconds that the searches of this run may take; shared equally.", type=Seconds(), metavar="SECONDS"
    ),
    tuner: str = option(
        "The search: xgb, by a model that learns from the trials; ga, a genetic algorithm; random; grid, in order.",
        type=click.Choice(["xgb", "ga", "random", "grid"]),
        default="xgb",
    ),
    early_stopping: int | None = option("Leave a task after N trials without a better one.", metavar="N"),
    seed: int = SEED,
    dry_run: bool = option(
        "List the tasks, the number of configurations of each and the trials to do; measure nothing."
    ),
    as_json: bool = JSON,
) -> None:
    """Find fast configurations for the convolutions of MODEL, an ONNX or .pt2 file, and log every trial.

    For a GPU, kernels that compute several layers, such as attention, are tuned too.

    Trials of a task on this device that LOG has already count: after a crash or Ctrl-C the same command goes on.
    Ctrl-C finishes the trial under way and prints the results; a second one ends at once. The default configuration is
    measured too, and again at the end with the best few: the best is never slower than the default. A gradient by the
    input with a stride of 1 is a convolution, and is tuned as one.
    """
    source.require_usable()
    how.require_usable()

    from tvmconv.autotvm.session import tune_tasks
    from tvmconv.autotvm.tidy import require_appendable
    from tvmconv.targets import device_facts

    require_appendable(output)
    found = source.tasks()
    chosen = {number: task for number, task in enumerate(found, 1) if only is None or number in only}
    if only is not None and (absent := set(only) - chosen.keys()):
        raise InvalidArgumentError("tasks", min(absent), f"numbers from 1 to {len(found)}, as --dry-run lists them")
    tasks = list(chosen.values())
    if dry_run:
        number = how.devices[0] if how.devices else 0
        device = None if how.rpc_tracker else device_facts(tasks[0].target.kind.name, number)
        tell_log(output, tasks, device)
        print_plan(chosen, output, device, trials, as_json)
        return

    with closing(how.option()) as option, interrupts(lambda: os.write(2, FINISHING)) as pressed:
        device = option.device(tasks[0])
        tell_log(output, tasks, device)
        note(f"measuring on {device}: medians of repeated calls on the same arrays, so caches are warm, a GPU's L2 too")
        summaries = tune_tasks(
            tasks,
            output,
            option,
            tuner=tuner,
            trials=trials,
            early_stopping=early_stopping,
            time_budget=time_budget or inf,
            seed=seed,
            stop=lambda: bool(pressed),
        )
    print_summaries(dict(zip(chosen, summaries, strict=True)), output, device, as_json)
    raise_if_pressed(pressed)
    if broken := [number for number, summary in zip(chosen, summaries, strict=True) if never_worked(summary)]:
        numbers = ", ".join(map(str, broken))
        raise NoValidConfigurationError(
            f"no trial of task {numbers} worked: `tvmconv log show {output}` lists the reasons"
        )
