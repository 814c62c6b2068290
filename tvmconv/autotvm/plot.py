"""Plots of tuning logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from os import PathLike

from tvmconv.dispatch.record import Record
from tvmconv.dispatch.trial import Stage
from tvmconv.problem.errors import MissingPackageError


def plot_convergence(runs: Mapping[str, Sequence[Record]], path: str | PathLike[str], purpose: str) -> None:
    """Write a PNG with the best so far in µs against the number of the trial, one curve for each named run.

    `purpose` is what needs the plot, for the error that says matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingPackageError("matplotlib", "plot", purpose) from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="trial", ylabel="best so far, µs", yscale="log" if len(runs) > 1 else "linear")
    for name, records in runs.items():
        best = best_so_far(records)
        axes.step(range(1, len(best) + 1), best, where="post", label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if runs:
        figure.legend(loc="outside lower center", fontsize="small")
    figure.savefig(path, format="png", dpi=150)


def best_so_far(records: Sequence[Record]) -> list[float]:
    """Return the least cost in µs after each trial of a search, NaN before the first that worked."""
    costs = (1e6 * record.cost for record in records if record.stage is Stage.SEARCH)
    return [cost if cost < inf else float("nan") for cost in accumulate(costs, min)]
