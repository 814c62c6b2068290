"""Configurations to try a schedule with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from tvmconv.dispatch import template_for
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

if TYPE_CHECKING:
    import tvm


RARE = {
    "vthreads_y": (1, 2),
    "vthreads_x": (1, 2),
    "unroll": (0, 1, 2),
    "shared_input": (False, True),
    "load": (1, 2, 4),
    "siblings": (1, 2, 4),
    "flat": (False, True),
}
"""Values of knobs besides those in a space."""


def random_configs(workload: ConvWorkload, target: tvm.target.Target, count: int, algorithm: str = "auto") -> list[Any]:
    """Return legal configurations, which depend on the workload alone; among them some that no tuner would try.

    About half of the knobs are as in the default one: where few combinations are legal, they are near it.
    """
    space = template_for(Problem(workload), target, algorithm).space(Problem(workload), target)
    return list(islice(legal_configs(space, str(workload)), count))


def legal_configs(space: Any, seed: str) -> Iterator[Any]:
    """Yield such configurations of a `Space`, without end."""
    choose = random.Random(seed)
    knobs = {field.name: RARE.get(field.name) or space.knobs[field.name] for field in fields(space.default)}
    while True:
        drawn = {name: choose.choice(values) for name, values in knobs.items() if choose.random() < 0.5}
        config = replace(space.default, **drawn)
        if not space.violated(config):
            yield config
