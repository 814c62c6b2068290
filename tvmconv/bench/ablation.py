"""The layers of the im2win thesis measured without each optimization in turn, as in its figure 4-9."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from tvmconv.dispatch import Selection, select
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from .peers.ours import Configured
from .report import Row
from .suite import How, measure_row
from .timing import Timing

SUITE = "im2win-thesis"


@dataclass(frozen=True)
class Ablation:
    """A layer's times with the configuration that tvmconv chooses, and without each of its optimizations."""

    selection: Selection
    without: dict[str, Any]
    """The legal configurations that lack one optimization, by its name."""
    row: Row

    @property
    def whole(self) -> Timing:
        """The seconds of a call with all optimizations."""
        return self.row.times[str(self.selection.config)]

    @property
    def times(self) -> dict[str, Timing]:
        """The seconds of a call without each optimization."""
        return {name: self.row.times[str(config)] for name, config in self.without.items()}

    @property
    def shares(self) -> dict[str, float]:
        """The speed without each optimization, as a share of the speed with all."""
        return {name: self.whole.median / timing.median for name, timing in self.times.items()}


def measure_ablations(
    workloads: Mapping[str, ConvWorkload],
    target: tvm.target.Target,
    algorithm: str,
    how: How,
    started: Callable[[str], None],
) -> Iterator[Ablation]:
    """Measure the layers one by one; `started` is told the name of each before it begins.

    `algorithm` is that of `tvmconv.compile`. All configurations of a layer are checked, and take turns. Raises
    `WrongResultError` for a wrong result.
    """
    for name, workload in workloads.items():
        started(f"{name}: {workload}")
        selection = select(Problem(workload), target, algorithm=algorithm)
        space = selection.template.space(Problem(workload), target)
        without = {
            name: config
            for name, config in selection.template.ablations(selection.config).items()
            if config != selection.config and not space.violated(config)
        }
        _, chosen = selection.name.split("/")
        peers = [Configured(config, chosen) for config in dict.fromkeys([selection.config, *without.values()])]
        yield Ablation(selection, without, measure_row(SUITE, name, workload, target, peers, how))
