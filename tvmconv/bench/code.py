"""The code that a weight with zeros in it is compiled into."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from tvmconv.targets import cuda, cuda_arch, kernel_cache

if TYPE_CHECKING:
    from tvmconv.runtime.sparse.operator import SparseOperator


class Code(msgspec.Struct, frozen=True):
    """The code that a weight was compiled into; `ptx_bytes` and `cubin_bytes` are of CUDA alone."""

    sparsity: float
    nonzeros: int
    blocks: int
    launches: int
    template: int
    """The number of multiply-adds of a thread in the template, for all blocks of output channels."""
    removed: int
    left: int
    instructions: int
    """The number of instructions in the machine code."""
    ptx_bytes: int
    cubin_bytes: int


def code_of(operator: SparseOperator) -> Code:
    """Describe the code of a compiled operator; its PTX is made anew."""
    report = operator.report
    images, texts = [], []
    if sources := operator.sources():
        arch = cuda_arch(operator.target)
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
