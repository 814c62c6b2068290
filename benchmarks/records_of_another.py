"""The gain from another device's records on this one: its best configurations beside the defaults, both measured here.

    python benchmarks/records_of_another.py LOG [--target cuda] [--rounds 3]

LOG holds the other device's records, such as tuning_logs/nvidia-h100-80gb-hbm3.jsonl. A row is a problem of LOG that
the target can compute: "times" has the default and the record, "gain" is how many times as long the default takes, and
"serves" says whether the record would serve here as one of a sibling.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from statistics import geometric_mean, median

import msgspec
from script import Row, main

from tvmconv import autotvm
from tvmconv.autotvm.measure import MeasureInput, MeasureOption, Stage
from tvmconv.autotvm.record import Record, load_from_file
from tvmconv.autotvm.task import Task
from tvmconv.autotvm.tidy import by_making
from tvmconv.dispatch import template_named
from tvmconv.dispatch.history import History, best_record
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each problem, and print the means behind them."""
    (log,) = given.logs
    found, target, gains = load_from_file(log), resolve_target(given.target), list[tuple[bool, float]]()
    history = History(found, log)
    with closing(autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())) as option:
        for made, same in by_making(found.records).items():
            best, problem = best_record(same), made.problem
            if best is None or not isinstance(problem, Problem):
                continue
            if target.kind.name != resolve_target(best.target).kind.name:
                continue
            algorithm = "auto" if problem.sparsity is not None else made.template.rpartition("/")[2]
            task = autotvm.create(problem.workload, given.target, algorithm, problem.sparsity, problem.precision)
            template = template_named(made.template)
            tuned = msgspec.convert(best.knobs, template.Config)
            serves = history.best_of_sibling(problem, task.target, template, option.device(task)) == best
            measured = compare(task, tuned, given.rounds, option)
            times = {name: cost(measured, each) for name, each in (("default", task.space.default), ("record", tuned))}
            gains.append((serves, times["default"]["median"] / times["record"]["median"]))
            about = {"problem": str(problem), "template": made.template, "threads there": best.device.threads}
            yield {**about, "serves": serves, "gain": gains[-1][1], "times": times}
    for which, some in (("all", gains), ("those that serve", [each for each in gains if each[0]])):
        of_which = [gain for _, gain in some]
        mean = f"geometric mean {geometric_mean(of_which):.3f}, " if of_which else ""
        print(f"{which}: {mean}{len(of_which)} problems, {sum(each < 1 for each in of_which)} slower than the default")


def compare(task: Task, tuned: object, rounds: int, option: MeasureOption) -> list[Record]:
    """Return records of the default and of another configuration, measured in turn."""
    configs = [task.space.default] + ([tuned] if tuned != task.space.default else [])
    inputs = [MeasureInput(task.target, task, config, Stage.CONFIRM) for config in configs * rounds]
    return [Record.of(trial, result) for trial, result in option.measure(inputs, lambda trial: None)]


def cost(records: list[Record], config: object) -> dict[str, float]:
    """Return the seconds of a call with a configuration, infinite where it failed."""
    costs = [record.cost for record in records if record.knobs == msgspec.to_builtins(config)]
    return {"median": median(costs), "low": min(costs), "high": max(costs)}


if __name__ == "__main__":
    main(__doc__, rows, logs=(), target="llvm", rounds=3)
