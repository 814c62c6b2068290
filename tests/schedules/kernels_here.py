"""Kernels of an algorithm that tests build for this machine's CPU, or for another target that it runs, and check."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_kernel
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands

HERE = resolve_target("llvm")


def result(
    algorithm: str,
    workload: ConvWorkload,
    operands: dict[str, np.ndarray],
    config: Any = None,
    target: tvm.target.Target = HERE,
) -> np.ndarray:
    """Return the output of an algorithm's kernel in a configuration, None for the default one."""
    problem = Problem(workload)
    kernel = build_kernel(problem, select(problem, target, config, algorithm), target).executable[KERNEL_NAME]
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    kernel(*tensors)
    return np.asarray(tensors[-1].numpy())


def run(algorithm: str, workload: ConvWorkload, config: Any = None, target: tvm.target.Target = HERE) -> None:
    """Check the output of such a kernel against the float64 reference."""
    operands = random_operands(workload)
    check_result(workload, operands, result(algorithm, workload, operands, config, target))
