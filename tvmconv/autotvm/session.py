"""A tuning run: it tunes task after task and logs every trial, so that the next run goes on from there."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from os import PathLike
from statistics import median, quantiles
from typing import Any

from tvmconv.dispatch.call import Call
from tvmconv.dispatch.history import applicable, best_record
from tvmconv.dispatch.record import Record, append, load_from_file
from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureInput, MeasureResult, Stage, Status
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import require_positive
from tvmconv.targets import DeviceFacts

from .callback import log_to_file, progress_bar
from .measure.protocol import MeasureOption, never, require_callbacks, require_measure_option
from .tidy import default_record
from .tuner.ga_tuner import GATuner
from .tuner.index_based_tuner import GridSearchTuner, RandomTuner
from .tuner.tuner import Callback, Tuner
from .tuner.xgb_tuner import XGBTuner

TUNERS: dict[str, type[Tuner]] = {"xgb": XGBTuner, "ga": GATuner, "random": RandomTuner, "grid": GridSearchTuner}


@dataclass(frozen=True)
class Summary:
    """The summary of a task's records on a device. Costs are seconds of a call, infinite where nothing works."""

    task: Task
    default_cost: float
    best_cost: float
    """The cost of the best configuration, the confirmed one if there is one: at most that of the default."""
    best_config: Any
    """The best configuration; None where nothing works."""
    spread: float | None
    """The noise of the best's costs: the range of their middle half, as a share of their median."""
    trials: int
    """The number of different configurations searched."""
    failures: Counter[Status]

    @classmethod
    def of(cls, task: Task, records: Sequence[Record]) -> Summary:
        """Return the summary of the records that apply to a task."""
        best, default = best_record(records), default_record(records)
        return cls(
            task=task,
            default_cost=inf if default is None else default.cost,
            best_cost=inf if best is None else best.cost,
            best_config=None if best is None else task.config(best.knobs),
            spread=None if best is None else spread(best.costs),
            trials=searched(records),
            failures=Counter(record.status for record in records if record.status is not Status.OK),
        )


def tune_tasks(
    tasks: Sequence[Task],
    log: str | PathLike[str],
    measure_option: MeasureOption,
    *,
    tuner: str = "xgb",
    trials: int = 1000,
    early_stopping: int | None = None,
    time_budget: float = inf,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = never,
) -> list[Summary]:
    """Tune tasks one after the other, show progress on stderr, and return a summary of each at the end.

    The log grows trial by trial, and its records of a task on this device count: a run that was ended in any way goes
    on where it was. Records of other workloads teach tuners that learn. `trials` is the total, shared equally, see
    `shares`; trials that a task leaves over by `early_stopping` go to the later ones. So it is with `time_budget`, in
    seconds, which ends the search of a task, but neither its first trial, of the default configuration, nor the
    confirmation of its best. `stop` is asked after every trial, and ends the run.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> option = autotvm.measure_option("local", "local")
    >>> (summary,) = autotvm.tune_tasks([task], "tuned.jsonl", option, tuner="random", trials=2)
    >>> option.close()
    >>> summary.best_cost <= summary.default_cost
    True
    """
    if tuner not in TUNERS:
        raise InvalidArgumentError("tuner", tuner, f"one of {', '.join(TUNERS)}")
    require_measure_option(measure_option)
    require_callbacks(callbacks)
    require_positive("trials", trials)
    write = log_to_file(log)
    append(log, [])  # a log that cannot be written is found before any work
    until = time.monotonic() + time_budget

    def keep(tuner: Tuner, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        if not (stop() and results[0].status is Status.CRASH):  # a Ctrl-C may have ended a worker that just began
            write(tuner, inputs, results)

    if len(tasks) > 1:  # it takes a tenth of a second or more for each
        print(f"listing the spaces of {len(tasks)} tasks", file=sys.stderr, flush=True)
    sizes = [len(task.space.configs) for task in tasks]
    for i, task in enumerate(tasks):
        now = time.monotonic()
        if stop() or now >= until:
            break
        ends = now + (until - now) / len(sizes[i:])
        records, device = load_from_file(log).records, measure_option.device(task)
        share, *later = shares(trials, sizes[i:])
        search = TUNERS[tuner](task, seed=seed)
        search.load_history(similar(records, task, device))
        search.resume(applicable(records, task, device))

        def ended(search: Tuner = search, share: int = share, ends: float = ends) -> bool:
            return stop() or (0 < search.trials < share and time.monotonic() >= ends)

        with progress_bar(
            share, f"task {i + 1}/{len(tasks)} {task.problem}", later=sum(later), until=until
        ) as progress:
            each: tuple[Callback, ...] = (keep, progress, *callbacks)
            search.tune(share, measure_option, early_stopping, each, ended)
            if ended():  # by time: what was found is still to be confirmed
                search.tune(min(share, search.trials), measure_option, early_stopping, each, stop)
        trials -= min(share, search.trials)
    records = load_from_file(log).records
    return [Summary.of(task, applicable(records, task, measure_option.device(task))) for task in tasks]


def shares(trials: int, sizes: Sequence[int]) -> list[int]:
    """Return equal shares of trials for spaces of these sizes; trials that a small space leaves over go to the others.

    >>> shares(100, [20, 1000, 1000])
    [20, 40, 40]
    """
    given = [0] * len(sizes)
    smallest_first = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for number, i in enumerate(smallest_first):
        given[i] = min(sizes[i], trials // (len(sizes) - number))
        trials -= given[i]
    return given


def searched(records: Iterable[Record]) -> int:
    """Return the number of different configurations that the records of a task have searched."""
    return len({record.config.entity for record in records if record.stage is Stage.SEARCH})


def similar(records: Iterable[Record], task: Task, device: DeviceFacts) -> list[Record]:
    """Return the records of other problems that the same template made on the same device."""
    others: dict[Problem | Call, list[Record]] = {}
    for record in records:
        if record.template == task.name and record.problem != task.problem:
            others.setdefault(record.problem, []).append(record)
    return [
        record for problem, same in others.items() for record in applicable(same, task.for_problem(problem), device)
    ]


def spread(costs: Sequence[float]) -> float | None:
    """Return the range of the middle half of costs, as a share of their median; None for a single one."""
    if len(costs) < 2:
        return None
    low, _, high = quantiles(costs, method="inclusive")
    return (high - low) / median(costs)
