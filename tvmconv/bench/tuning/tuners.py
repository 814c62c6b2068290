"""The number of trials that each tuner needs, replayed from exhaustive logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from tvmconv.autotvm.session import TUNERS
from tvmconv.autotvm.simulator import ReplayedTask, Simulator
from tvmconv.autotvm.tuner import Tuner, XGBTuner
from tvmconv.dispatch.record import Record, load_from_file
from tvmconv.dispatch.trial import Stage
from tvmconv.problem import Problem

WARM = "xgb, warm"
WITHIN = 1.05
"""The factor times the best cost of the space that a tuner has to reach."""

HISTORY = 64
"""The number of random records of each other workload that the warm start learns from."""


def replay(logs: Iterable[PathLike[str]], seeds: int) -> list[dict[str, Any]]:
    """Return a row for each problem of the logs, which hold a trial of every configuration, and each tuner."""
    spaces = defaultdict[tuple[Problem, str], list[Record]](list)
    for log in logs:
        for record in load_from_file(log).records:
            problem = record.problem
            if record.stage is Stage.SEARCH and isinstance(problem, Problem):
                spaces[problem, record.template].append(record)
    return [row for space in spaces for row in compare(space, spaces, range(seeds))]


def compare(
    space: tuple[Problem, str], spaces: Mapping[tuple[Problem, str], Sequence[Record]], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Return a row for each tuner: quartiles over the seeds of the trials that it needs in a problem's space."""
    records = spaces[space]
    task = ReplayedTask.of(records)
    goal = WITHIN * min(record.cost for record in records)
    simulator = Simulator(records)
    others = [records for other, records in spaces.items() if other != space]
    rows = []
    for name in (*TUNERS, *([WARM] if others else [])):
        trials = []
        for seed in seeds:
            tuner = TUNERS.get(name, XGBTuner)(task, seed=seed)
            if name == WARM:
                random = np.random.default_rng(seed)
                tuner.load_history([same[i] for same in others for i in random.permutation(len(same))[:HISTORY]])
            trials.append(trials_to_reach(goal, tuner, simulator))
        lower, median, upper = (float(q) for q in np.quantile(trials, (0.25, 0.5, 0.75)))
        rows.append(
            {
                "workload": str(space[0]),
                "space": len(records),
                "good": sum(record.cost <= goal for record in records),
                "tuner": name,
                "median": median,
                "lower": lower,
                "upper": upper,
                "share": median / len(records),
            }
        )
    return rows


def trials_to_reach(goal: float, tuner: Tuner, simulator: Simulator) -> int:
    """Return the number of trials that a tuner makes until it finds a configuration no slower than the goal.

    The default counts as a trial, but not as found, good as it may be.
    """

    def reached() -> bool:
        config, cost = next(reversed(tuner.costs.items()), (tuner.space.default, goal))
        return cost <= goal and config != tuner.space.default

    tuner.tune(len(tuner.space.configs), simulator, stop=reached)
    return tuner.trials
