"""The layers of the im2win thesis without each optimization in turn, as its figure 4-9 has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from ..dispatch import Selection, select
from ..problem import Problem
from ..workload import ConvWorkload
from .peers.ours import Configured
from .report import Row
from .suite import measure_row
from .timing import Timing

SUITE = "im2win-thesis"


@dataclass(frozen=True)
class Ablation:
    """A layer with the configuration that tvmconv chooses, and without what makes it fast."""

    selection: Selection
    without: dict[str, Any]
    """The legal configurations that lack something, by its name."""
    row: Row

    @property
    def whole(self) -> Timing:
        """Seconds with everything."""
        return self.row.times[str(self.selection.config)]

    @property
    def times(self) -> dict[str, Timing]:
        """Seconds without each."""
        return {name: self.row.times[str(config)] for name, config in self.without.items()}

    @property
    def shares(self) -> dict[str, float]:
        """The speed that is left without each, as a share of the whole."""
        return {name: self.whole.median / timing.median for name, timing in self.times.items()}


def measure_ablations(
    workloads: Mapping[str, ConvWorkload],
    target: tvm.target.Target,
    algorithm: str,
    rounds: int,
    started: Callable[[str], None],
) -> Iterator[Ablation]:
    """Measures the layers one by one; `started` hears of each before it begins.

    `algorithm` is that of `tvmconv.compile`.

    All configurations of a layer are checked, and take turns. Raises `WrongResultError` for a wrong result.
    """
    for name, workload in workloads.items():
        started(f"{name}: {workload}")
        yield measure_ablation(name, workload, target, algorithm, rounds)


def measure_ablation(
    name: str, workload: ConvWorkload, target: tvm.target.Target, algorithm: str, rounds: int
) -> Ablation:
    """Measures one layer."""
    selection = select(Problem(workload), target, algorithm=algorithm)
    space = selection.template.space(Problem(workload), target)
    without = {
        name: config
        for name, config in selection.template.ablations(selection.config).items()
        if config != selection.config and not space.violated(config)
    }
    configs = dict.fromkeys([selection.config, *without.values()])
    _, chosen = selection.name.split("/")
    peers = [Configured(config, chosen) for config in configs]
    return Ablation(selection, without, measure_row(SUITE, name, workload, target, peers, rounds, cold=False))
