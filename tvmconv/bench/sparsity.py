"""The share of zeros in the weight from which sparse kernels pay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tvmconv.problem.workload import ConvWorkload

from .peers.peer import Peer
from .report import Row
from .suite import measure_row

if TYPE_CHECKING:
    import tvm

STEPS = tuple(step / 10 for step in range(10))
"""The shares of zeros in figure 11 of the sparse code-generation paper."""


def measure_sparsities(
    suite: str,
    workloads: dict[str, ConvWorkload],
    target: tvm.target.Target,
    peers: Sequence[Peer],
    sparsities: Sequence[float],
    rounds: int,
    started: Callable[[str], None],
) -> Iterator[Row]:
    """Measure each workload with each share of zeros, beside the peers; `started` is told each before it begins."""
    for name, workload in workloads.items():
        for sparsity in sparsities:
            started(f"{name} with {100 * sparsity:g}% zeros: {workload}")
            yield measure_row(suite, name, workload, target, peers, rounds, cold=False, sparsity=sparsity)


def crossover(rows: Iterable[Row], peer: str) -> float | None:
    """Return the share of zeros from which tvmconv is faster than a peer; None where it is slower at the largest."""
    found = None
    for row in sorted(rows, key=lambda row: row.sparsity or 0.0, reverse=True):
        ratio = row.times_faster(peer)
        if ratio is None or ratio <= 1:
            return found
        found = row.sparsity
    return found
