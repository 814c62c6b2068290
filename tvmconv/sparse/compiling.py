"""From a workload and its constants to a kernel: what everything outside this package calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.runtime import Executable

from .. import cuda, kernel_cache
from ..dispatch import Selection, select, sparse_template
from ..errors import CodeSizeError
from ..lowering import KERNEL_NAME, with_alignment
from ..problem import Problem
from ..targets import cuda_arch, resolve_target
from ..workload import ConvWorkload
from .blocks import output_blocks
from .building import build
from .folding import bind, expanded
from .report import SparseReport, make_report
from .template import Template, make_template
from .weights import Constants

MOST_PRODUCTS = {"cuda": 200_000, "llvm": 60_000}
"""Multiply-adds of a thread, by kind of target: so many take two cores about a minute to compile."""


_front_end = Lock()
"""Held while Python lowers a kernel: other threads would wait anyway, and would make the same templates."""


@dataclass(frozen=True)
class SparseKernel:
    """A convolution with its constants compiled in."""

    executable: Executable
    """The module; its one function takes the operands of the workload but for its constants."""
    selection: Selection
    report: SparseReport


def sparsity_of(weight: np.ndarray) -> float:
    """Share of zeros."""
    return 1 - float(np.count_nonzero(weight) / weight.size)


@lru_cache(maxsize=64)
def kept_template(workload: ConvWorkload, config: Any, target: str) -> Template:
    """The template of a workload, made once: any constants can be bound to it."""
    resolved = resolve_target(target)
    func = sparse_template(resolved).schedule(Problem(workload, 0.0), config, resolved).mod["main"]
    return make_template(with_alignment(func, resolved), resolved)


def lower_sparse(
    workload: ConvWorkload, constants: Constants, config: Any, target: tvm.target.Target
) -> tuple[tirx.PrimFunc, Template, list[list[int]]]:
    """The function with the constants bound, its template, and the blocks of output channels; for `building.build`.

    Raises `CodeSizeError` where the weight is too much to be compiled in.
    """
    template = kept_template(workload, config, str(target))
    dense = expanded(workload, constants)
    products, most = template.pixels * int(np.count_nonzero(dense["w"])), MOST_PRODUCTS[target.kind.name]
    if products > most:
        raise CodeSizeError(f"{workload}: {products} multiply-adds of a thread; at most {most} are compiled in")
    blocks = output_blocks(dense["w"], config.channels)
    return bind(template, dense, blocks), template, blocks


def compile_sparse(
    workload: ConvWorkload, constants: Constants, target: tvm.target.Target, config: Any = None, name: str = KERNEL_NAME
) -> SparseKernel:
    """The kernel of a workload for its constants, by the configuration of `select`.

    `name` is that of the function: functions of one network need different ones.

    Raises `InvalidArgumentError` for a weight of another shape, or with NaN or infinity in it, and `CodeSizeError`.
    """
    selection = select(Problem(workload, sparsity_of(constants["w"])), target, config)
    return compile_selected(workload, constants, target, selection, name)


def compile_selected(
    workload: ConvWorkload, constants: Constants, target: tvm.target.Target, selection: Selection, name: str
) -> SparseKernel:
    """The same by a selection that was made before; threads may compile several kernels side by side."""
    with _front_end:
        func, template, blocks = lower_sparse(workload, constants, selection.config, target)
    executable = build(func, target, name)
    sources = cuda.sources(executable.mod)
    images = kernel_cache.compile_all(sources, cuda_arch(target)) if sources else []
    return SparseKernel(executable, selection, make_report(constants["w"], template.pixels, len(blocks), images))
