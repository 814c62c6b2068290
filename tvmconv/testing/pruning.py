"""Operands with weights of which a share is zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..workload import ConvWorkload
from .operands import random_operands

if TYPE_CHECKING:
    from ..autotvm.task import Problem

Array = np.ndarray[Any, Any]


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
