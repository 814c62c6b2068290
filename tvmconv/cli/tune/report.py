"""Messages of `tvmconv tune`: about the log before it begins, its plan, and its results."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..console import note, print_json, print_table
from ..log import knobs_text, tell_skipped

if TYPE_CHECKING:
    from tvmconv.autotvm.session import Summary
    from tvmconv.dispatch.call import Call
    from tvmconv.dispatch.task import Task
    from tvmconv.problem import Problem
    from tvmconv.targets import DeviceFacts


FINISHING = b"finishing the trial under way; Ctrl-C again ends at once\n"


def raise_if_pressed(pressed: Sequence[int]) -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed during a search, after the command that goes on is told."""
    if pressed:
        note(f"to go on: {shlex.join(['tvmconv', *sys.argv[1:]])}")
        raise KeyboardInterrupt


def tell_log(path: Path, tasks: Sequence[Task], device: DeviceFacts | None) -> None:
    """Say which records of a log will not be used, and which trials were under way when its last run ended."""
    from tvmconv.dispatch.history import sifted
    from tvmconv.dispatch.record import load_from_file

    if not path.exists():
        return
    log = load_from_file(path)
    tell_skipped(path, log.skipped)
    for record in log.under_way:
        note(f"never ended in an earlier run: {record.problem}, {knobs_text(record)}")
    objections: Counter[str] = Counter()
    for task in tasks:
        of_task = (record for record in log.records if record.problem == task.problem)
        objections += sifted(of_task, task.target, task.maker, device)[1]
    for why, count in objections.items():
        note(f"{path}: {count} records are not used: {why}")


def print_plan(tasks: Mapping[int, Task], path: Path, device: DeviceFacts | None, trials: int, as_json: bool) -> None:
    """Print the trials that a run would make."""
    from tvmconv.autotvm.session import searched, shares
    from tvmconv.dispatch.history import applicable
    from tvmconv.dispatch.record import load_from_file

    if device is None and path.exists():
        note("this machine has no such device: the trials of every device count")
    records = load_from_file(path).records if path.exists() else []
    plan: dict[int, dict[str, object]] = {}
    for (number, task), share in zip(
        tasks.items(), shares(trials, [len(task.space.configs) for task in tasks.values()]), strict=True
    ):
        known = searched(applicable(records, task, device))
        plan[number] = {
            "layers": task.weight,
            "schedule": task.name,
            "space": len(task.space.configs),
            "in_log": known,
            "to_do": max(0, share - known),
        }
    if as_json:
        listed = [
            {"number": number, **_described(tasks[number].problem), **figures} for number, figures in plan.items()
        ]
        print_json({"log": str(path), "tasks": listed})
        return
    print_table(
        ["#", "workload", "layers", "schedule", "space", "in the log", "to do"],
        [[number, str(tasks[number].problem), *figures.values()] for number, figures in plan.items()],
    )


def print_summaries(summaries: dict[int, Summary], log: Path, device: DeviceFacts, as_json: bool) -> None:
    """Print the summary of each task at the end."""
    if as_json:
        records = [_record(number, summary) for number, summary in summaries.items()]
        print_json({"log": str(log), "device": device, "tasks": records})
        return
    print_table(
        ["#", "workload", "default µs", "best µs", "times", "spread", "trials", "failures"],
        [
            [
                number,
                str(summary.task.problem),
                _micros(summary.default_cost),
                _micros(summary.best_cost),
                _gain(summary),
                None if summary.spread is None else f"{summary.spread:.1%}",
                summary.trials,
                ", ".join(f"{count} {status.value}" for status, count in summary.failures.items()),
            ]
            for number, summary in summaries.items()
        ],
    )


def never_worked(summary: Summary) -> bool:
    """Return whether a task was tried and no trial worked."""
    return summary.trials > 0 and summary.best_cost == inf


def _described(problem: Problem | Call) -> dict[str, object]:
    """Return the fields of a problem."""
    return problem._asdict() if isinstance(problem, tuple) else msgspec.structs.asdict(problem)


def _micros(cost: float) -> float | None:
    return 1e6 * cost if cost < inf else None


def _gain(summary: Summary) -> float | None:
    return summary.default_cost / summary.best_cost if summary.default_cost < inf else None


def _record(number: int, summary: Summary) -> dict[str, object]:
    return {
        "number": number,
        **_described(summary.task.problem),
        "target": json.loads(str(summary.task.target)),
        "default_seconds": summary.default_cost,
        "best_seconds": summary.best_cost,
        "times": _gain(summary),
        "spread": summary.spread,
        "config": summary.best_config,
        "trials": summary.trials,
        "failures": {status.value: count for status, count in summary.failures.items()},
    }
