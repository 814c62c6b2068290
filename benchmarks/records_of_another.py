"""The gain from another device's records on this one: its best configurations beside the defaults, both measured here.

    python benchmarks/records_of_another.py LOG [--target cuda] [--rounds 3]

LOG holds the other device's records, such as tuning_logs/nvidia-h100-80gb-hbm3.jsonl. A row is a problem of LOG that
the target can compute: "times" has the default and the record; the kind "serves" is a record that would serve here as
one of a sibling. Behind the rows is how many times as long the default takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import closing
from statistics import median

import msgspec
from script import Row, main

from tvmconv import autotvm
from tvmconv.autotvm.measure import MeasureInput, MeasureOption, Stage
from tvmconv.autotvm.record import Record, load_from_file
from tvmconv.autotvm.task import Task
from tvmconv.autotvm.tidy import by_making
from tvmconv.bench.timing import Timing
from tvmconv.dispatch import template_named
from tvmconv.dispatch.history import History, best_record
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each problem."""
    (log,) = given.logs
    found, target = load_from_file(log), resolve_target(given.target)
    history = History(found, log)
    with closing(autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())) as option:
        for made, same in by_making(found.records).items():
            best, problem = best_record(same), made.problem
            if best is None or not isinstance(problem, Problem) or resolve_target(best.target).kind != target.kind:
                continue
            algorithm = "auto" if problem.sparsity is not None else made.template.rpartition("/")[2]
            task = autotvm.create(problem.workload, given.target, algorithm, problem.sparsity, problem.precision)
            template = template_named(made.template)
            tuned = msgspec.convert(best.knobs, template.Config)
            serves = history.best_of_sibling(problem, task.target, template, option.device(task)) == best
            configs = {"default": task.space.default, "record": tuned}
            measured = compare(task, configs.values(), given.rounds, option)
            times = {name: timing(measured, config) for name, config in configs.items()}
            about = {"problem": str(problem), "template": made.template, "threads there": best.device.threads}
            yield {"kind": "serves" if serves else "other", **about, "times": msgspec.to_builtins(times)}


def compare(task: Task, configs: Iterable[object], rounds: int, option: MeasureOption) -> list[Record]:
    """Return records of configurations, measured in turn."""
    inputs = [MeasureInput(task.target, task, config, Stage.CONFIRM) for config in [*dict.fromkeys(configs)] * rounds]
    return [Record.of(trial, result) for trial, result in option.measure(inputs, lambda trial: None)]


def timing(records: list[Record], config: object) -> Timing:
    """Return the time of a call with a configuration, infinite where it failed."""
    costs = [record.cost for record in records if record.knobs == msgspec.to_builtins(config)]
    return Timing(median(costs), min(costs), max(costs))


if __name__ == "__main__":
    main(__doc__, rows, "record", logs=(), target="llvm", rounds=3)
