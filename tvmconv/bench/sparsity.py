"""Weights with zeros in them: what code comes of them, and from what share on they pay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from .. import cuda, kernel_cache
from ..sparse.report import SparseReport
from ..targets import cuda_arch

if TYPE_CHECKING:
    import tvm

    from ..sparse.operator import SparseOperator
    from ..workload import ConvWorkload
    from .peers.peer import Peer
    from .report import Row

STEPS = tuple(step / 10 for step in range(10))
"""The shares of zeros in figure 11 of the sparse code-generation paper."""


class Code(msgspec.Struct, frozen=True):
    """What a weight was compiled into; PTX and cubins, in bytes, are for CUDA alone."""

    sparsity: float
    nonzeros: int
    blocks: int
    launches: int
    template: int
    """Multiply-adds of a thread in the template, for all blocks of output channels."""
    removed: int
    left: int
    instructions: int
    """Of the machine code."""
    ptx_bytes: int
    cubin_bytes: int


def code_of(operator: SparseOperator) -> Code:
    """The code of a compiled operator; its PTX is made anew."""
    report: SparseReport = operator.report
    images, texts = [], []
    if operator.target.kind.name == "cuda":
        arch, sources = cuda_arch(operator.target), operator.sources()
        images = kernel_cache.compile_all(sources, arch)
        with ThreadPoolExecutor() as pool:
            texts = list(pool.map(lambda source: cuda.to_ptx(source, arch), sources))
    return Code(
        sparsity=report.sparsity,
        nonzeros=report.nonzeros,
        blocks=report.blocks,
        launches=report.launches,
        template=report.multiply_adds,
        removed=report.removed,
        left=report.left,
        instructions=report.instructions,
        ptx_bytes=sum(map(len, texts)),
        cubin_bytes=sum(map(len, images)),
    )


def measure_sparsities(
    suite: str,
    workloads: dict[str, ConvWorkload],
    target: tvm.target.Target,
    peers: Sequence[Peer],
    sparsities: Sequence[float],
    rounds: int,
    started: Callable[[str], None],
) -> Iterator[Row]:
    """Each workload with each share of zeros, beside the peers; `started` hears of each before it begins."""
    from .suite import measure_row

    for name, workload in workloads.items():
        for sparsity in sparsities:
            started(f"{name} with {100 * sparsity:g}% zeros: {workload}")
            yield measure_row(suite, name, workload, target, peers, rounds, cold=False, sparsity=sparsity)


def crossover(rows: Iterable[Row], peer: str) -> float | None:
    """The share of zeros from which on tvmconv is faster than a peer; None where it is not at the last."""
    found = None
    for row in sorted(rows, key=lambda row: row.sparsity or 0.0, reverse=True):
        ratio = row.times_faster(peer)
        if ratio is None or ratio <= 1:
            return found
        found = row.sparsity
    return found
