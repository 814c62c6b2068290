"""Kernels of an algorithm that tests build for this machine's CPU, or for another target that it runs, and check."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build, build_kernel, lower
from tvmconv.network.passes.convolutions.packing import split_packing
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


def check_packed(workload: ConvWorkload, algorithm: str = "auto") -> list[str]:
    """Check a kernel that reads what is made of the weight ahead, as in a network, and return the types of that."""
    selection = select(Problem(workload), HERE, algorithm=algorithm)
    kernel, packing = split_packing(lower(Problem(workload), selection, HERE, KERNEL_NAME))
    assert packing is not None
    operands = random_operands(workload)
    x, w, *others = map(tvm.runtime.tensor, operands.values())
    made = packing(w.numpy())
    build(tvm.IRModule({KERNEL_NAME: kernel}), HERE)[KERNEL_NAME](x, *made, *others)
    check_result(workload, operands, others[-1].numpy())
    return [array.dtype for array in made]
