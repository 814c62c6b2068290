"""Trials of random problems: their configurations, and the keys by which a log has them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm

from tvmconv.autotvm.task import ConvTask
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for
from tvmconv.dispatch.record import Record, load_from_file
from tvmconv.dispatch.trial import MeasureInput
from tvmconv.problem.errors import NoValidConfigurationError

from .problems import Size, random_problem

logger = logging.getLogger(__name__)

TURNS = 20_000
"""The most draws for all random configurations of a problem together."""


def configurations(task: ConvTask, count: int, draw: Draw) -> list[Any]:
    """Return up to `count` configurations: the default, others of the space, and for half of them any legal ones."""
    space = task.space
    found = dict.fromkeys([space.default])
    for _ in range(10 * count):
        if len(found) < (count + 1) // 2:
            found.setdefault(draw.of(space.configs))
    for _ in range(TURNS):
        if len(found) >= count:
            break
        config = type(space.default)(**{name: draw.of(values) for name, values in space.knobs.items()})
        if not space.violated(config):
            found.setdefault(config)
    return [*found]


def trials(
    algorithms: Sequence[str], problems: int, configs: int, seed: int, target: tvm.target.Target, size: Size, few: int
) -> Iterator[MeasureInput]:
    """Yield trials of each algorithm for a number of problems, one problem of each after the other.

    A problem has `configs` configurations of its algorithm, and `few` of each other one that takes it.
    """
    idle = set[str]()
    for number in range(problems):
        for algorithm in (each for each in algorithms if each not in idle):
            draw = Draw(f"{seed} {algorithm} {number}")
            problem = random_problem(draw, algorithm, target, size)
            if problem is None:
                idle.add(algorithm)
                logger.info("%s takes none of many random problems", algorithm)
                continue
            others = [each for each in algorithms_for(problem, target) if each not in (algorithm, "sparse")]
            for taker in (algorithm, *(others if few and problem.sparsity is None else ())):
                task = ConvTask(problem.workload, target, algorithm=taker if problem.sparsity is None else "auto")
                task = task.for_problem(problem)
                try:
                    found = configurations(task, configs if taker == algorithm else few, draw)
                except NoValidConfigurationError as error:
                    logger.info("%s", error)
                    continue
                for config in found:
                    yield MeasureInput(target, task, config)


Key = tuple[str, str]
"""The task of a trial and its configuration, as text."""


def key_of(trial: MeasureInput) -> Key:
    """Return the key of a trial."""
    return f"{trial.task} on {trial.target}", json.dumps(trial.task.knobs(trial.config), sort_keys=True)


def key_of_record(record: Record) -> Key:
    """Return the key of the trial that a record is of."""
    return f"{record.problem} by {record.template} on {record.target}", json.dumps(record.knobs, sort_keys=True)


def records_in(path: Path) -> list[Record]:
    """Return the records in a file: none where there is no file."""
    return load_from_file(path).records if path.exists() else []


def keys_in(path: Path) -> set[Key]:
    """Return the keys of the trials in a file of records: none where there is no file."""
    return {*map(key_of_record, records_in(path))}
