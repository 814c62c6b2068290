"""The sizes by which a configuration is chosen where they are known only when the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from tvmconv.problem import Problem
from tvmconv.workload import ConvWorkload

from .space import wasted

SHARES = (0.5, 0.7, 0.85, 1.0, 1.2)
"""The sizes that a plane may have, as shares of the one in the problem's workload.

Few tiles divide all of them, so that one is chosen that wastes little on any.
"""

LITTLE_WASTE = 1.1
"""The largest mean waste, as a multiple of the rows there are, of the rows of a task."""


def samples(problem: Problem) -> list[ConvWorkload]:
    """Return the workloads by which a configuration is chosen: the problem's, and smaller and larger planes if open."""
    workload = problem.workload
    if not problem.has_open_planes:
        return [workload]
    (top, left, bottom, right), window = workload.padding, workload.window
    least = {"height": max(1, window[0] - top - bottom), "width": max(1, window[1] - left - right)}
    planes = (
        {name: max(least[name], round(share * getattr(workload, name))) for name in problem.open_sizes if name in least}
        for share in SHARES
    )
    return [msgspec.structs.replace(workload, **sizes) for sizes in planes]


def few_rows(workloads: Sequence[ConvWorkload], rows: int, most: int) -> int:
    """Return how many times so many rows a task has at most, such that it wastes little on planes of any height."""

    def waste(tiles: int) -> float:
        return fmean(wasted(workload.output_size[0], tiles * rows) for workload in workloads)

    return max((tiles for tiles in range(1, most + 1) if waste(tiles) <= LITTLE_WASTE), default=1)
