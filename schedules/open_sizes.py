"""The sizes by which a configuration is chosen where they are known only when the kernel runs."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean

import msgspec

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from .space import wasted

SHARES = (0.5, 0.7, 0.85, 1.0, 1.2)
"""The sizes that a plane may have, as shares of the one in the problem's workload.

Few tiles divide all of them, so that one is chosen that wastes little on any.
"""

LITTLE_WASTE = 1.1
"""The largest mean ratio of computed rows to the rows of a plane, for the rows of a task."""


def least_planes(workload: ConvWorkload) -> dict[str, int]:
    """Return the least height and width of an input that the workload's kernel fits, by name."""
    (top, left, bottom, right), window = workload.padding, workload.window
    return {"height": max(1, window[0] - top - bottom), "width": max(1, window[1] - left - right)}


@lru_cache(maxsize=64)  # models ask for them with each of thousands of configurations
def samples(problem: Problem) -> tuple[ConvWorkload, ...]:
    """Return the workloads by which a configuration is chosen: the problem's, and smaller and larger planes if open."""
    workload = problem.workload
    if not problem.has_open_planes:
        return (workload,)
    least = {name: size for name, size in least_planes(workload).items() if name in problem.open_sizes}
    planes = (
        {name: max(size, round(share * getattr(workload, name))) for name, size in least.items()} for share in SHARES
    )
    return tuple(msgspec.structs.replace(workload, **sizes) for sizes in planes)


def tiles_of_open_rows(problem: Problem, rows: int, limit: int) -> int:
    """Return the number of times `rows` rows of a task: `limit`, or fewer where planes are open and more waste much."""
    if not problem.has_open_planes:
        return limit
    heights = [workload.output_size[0] for workload in samples(problem)]

    def waste(tiles: int) -> float:
        return fmean(wasted(height, tiles * rows) for height in heights)

    return max((tiles for tiles in range(1, limit + 1) if waste(tiles) <= LITTLE_WASTE), default=1)


@lru_cache(maxsize=64)
def of_several_sizes(problem: Problem) -> tuple[Problem, ...]:
    """Return the problems by which a configuration for open planes is chosen; for known planes, the problem alone."""
    if not problem.has_open_planes:
        return (problem,)
    return tuple(msgspec.structs.replace(problem, workload=workload) for workload in samples(problem))
