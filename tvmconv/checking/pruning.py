"""Operands with a share of zeros in the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tvmconv.problem.constants import COMPILED_IN, Constants
from tvmconv.problem.workload import ConvWorkload

from .operands import random_operands

if TYPE_CHECKING:
    from tvmconv.problem import Problem

Array = np.ndarray[Any, Any]


def pruned(weight: Array, sparsity: float, seed: int = 0) -> Array:
    """Return the weight with a share of zeros at random indices; a larger share keeps the zeros of a smaller one."""
    zeros = np.random.default_rng(seed).permutation(weight.size)[: round(sparsity * weight.size)]
    left: Array = weight.copy()
    left.flat[zeros] = 0
    return left


def random_constants(workload: ConvWorkload, sparsity: float) -> Constants:
    """Return random constants for a sparse kernel, always the same, with a share of zeros in the weight.

    They do not depend on the images that they are used with.
    """
    rng, operands = np.random.default_rng(0), workload.operands
    wanted = ((name, *operands[name]) for name in COMPILED_IN if name in operands)
    drawn = {name: rng.standard_normal(shape).astype(dtype) for name, shape, dtype in wanted}
    return {**drawn, "w": pruned(drawn["w"], sparsity)}


def operands_for(problem: Problem) -> dict[str, Array]:
    """Return random operands by name, see `random_operands`, with `random_constants` for a sparse kernel."""
    arrays = random_operands(problem.workload, direction=problem.direction)
    if problem.sparsity is not None:
        arrays.update(random_constants(problem.workload, problem.sparsity))
    return arrays
