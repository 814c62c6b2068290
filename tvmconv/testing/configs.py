"""Configurations to try a schedule with."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ..dispatch import template_for
from ..workload import ConvWorkload

if TYPE_CHECKING:
    import tvm


def random_configs(workload: ConvWorkload, target: tvm.target.Target, count: int) -> list[Any]:
    """Legal configurations, the same for the same workload: also such as no tuner would try."""
    template = template_for(workload, target)
    space, choose = template.space(workload, target), random.Random(str(workload))
    knobs = {**space.knobs, "unroll": (0, 1, 2)}
    configs: list[Any] = []
    while len(configs) < count:
        config = template.Config(*map(choose.choice, knobs.values()))
        if not space.violated(config):
            configs.append(config)
    return configs
