"""Weights with zeros in them: how they are made, what code comes of them, and from what share on they pay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .. import cuda, kernel_cache
from ..sparse.report import SparseReport
from ..targets import cuda_arch
from ..testing import random_operands

if TYPE_CHECKING:
    import tvm

    from ..autotvm.task import Problem
    from ..sparse.operator import SparseOperator
    from ..workload import ConvWorkload
    from .peers.peer import Peer
    from .report import Row

Array = np.ndarray[Any, Any]

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


def pruned(weight: Array, sparsity: float, seed: int = 0) -> Array:
    """The weight with a share of zeros at random places; those of a smaller share are zero for a larger one, too."""
    zeros = np.random.default_rng(seed).permutation(weight.size)[: round(sparsity * weight.size)]
    left: Array = weight.copy()
    left.flat[zeros] = 0
    return left


def random_weight(workload: ConvWorkload, sparsity: float) -> Array:
    """A random weight with a share of zeros, always the same one, drawn without the images that are to meet it."""
    shape, dtype = workload.operands["w"]
    return pruned(np.random.default_rng(0).standard_normal(shape).astype(dtype), sparsity)


def operands_for(problem: Problem) -> dict[str, Array]:
    """Random operands by name, see `random_operands`; the weight is `random_weight` for a sparse kernel."""
    arrays = random_operands(problem.workload)
    if problem.sparsity is not None:
        arrays["w"] = random_weight(problem.workload, problem.sparsity)
    return arrays


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
