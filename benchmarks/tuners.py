"""The trials that each tuner needs to find a configuration within 5% of the best of a space, replayed from logs.

    python benchmarks/tuners.py tuning_logs/exhaustive/*.gz -o tuners.json

Each log holds a trial of every configuration of its workloads. A tuner starts from nothing, but "xgb, warm" from 64
random records of each of the other workloads. The default configuration is the first trial of all, and does not count
as found. A row has the quartiles over the seeds.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from script import Row, main

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


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each space of the logs and each tuner."""
    spaces = defaultdict[tuple[Problem, str], list[Record]](list)
    for record in (record for log in given.logs for record in load_from_file(log).records):
        if record.stage is Stage.SEARCH and isinstance(record.problem, Problem):
            spaces[record.problem, record.template].append(record)
    for space, records in spaces.items():
        goal = WITHIN * min(record.cost for record in records)
        others = [spaces[each] for each in spaces if each != space]
        for name in (*TUNERS, *([WARM] if others else [])):
            trials = []
            for seed in range(given.seeds):
                tuner = TUNERS.get(name, XGBTuner)(ReplayedTask.of(records), seed=seed)
                if name == WARM:
                    random = np.random.default_rng(seed)
                    tuner.load_history([same[i] for same in others for i in random.permutation(len(same))[:HISTORY]])
                trials.append(trials_to_reach(goal, tuner, Simulator(records)))
            lower, median, upper = (float(q) for q in np.quantile(trials, (0.25, 0.5, 0.75)))
            good = sum(record.cost <= goal for record in records)
            about = {"workload": str(space[0]), "space": len(records), "good": good, "tuner": name}
            yield {**about, "median": median, "lower": lower, "upper": upper, "share": median / len(records)}


def trials_to_reach(goal: float, tuner: Tuner, simulator: Simulator) -> int:
    """Return the number of trials that a tuner makes until it finds a configuration no slower than the goal.

    The default counts as a trial, but not as found, good as it may be.
    """

    def reached() -> bool:
        config, cost = next(reversed(tuner.costs.items()), (tuner.space.default, goal))
        return cost <= goal and config != tuner.space.default

    tuner.tune(len(tuner.space.configs), simulator, stop=reached)
    return tuner.trials


if __name__ == "__main__":
    main(__doc__, rows, logs=(), seeds=20)
