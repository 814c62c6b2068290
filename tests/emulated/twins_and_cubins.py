"""Checks of a template's kernels without a GPU: numbers of twins and an emulator, and resources of machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_kernel, build_twin, lower
from tvmconv.lowering.gpu.intrinsics import with_intrinsics
from tvmconv.lowering.workspace import take_out
from tvmconv.problem import Problem
from tvmconv.targets import cuda, resolve_target
from tvmconv.testing import check_result, random_operands

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})


def run_twin(
    algorithm: str, problem: Problem, config: Any, at: ConvWorkload | None = None, **operands: np.ndarray
) -> None:
    """Build the serial twin of a kernel of an algorithm, and check its result, for a workload of an open problem."""
    workload = at or problem.workload
    twin = build_twin(problem, select(problem, SM_90, config, algorithm), SM_90, workload=at)
    operands = operands or random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    memory = [tvm.runtime.empty(*parameter) for parameter in twin.workspace.parameters]
    twin.executable[KERNEL_NAME](*tensors, *memory)
    check_result(workload, operands, tensors[-1].numpy(), precision=problem.precision)


def run_emulated(algorithm: str, problem: Problem, config: Any, **operands: np.ndarray) -> Emulator:
    """Check the result of an algorithm's kernels in the emulator, and return the run of the one that copies."""
    (run,) = [run for run in emulated_runs(algorithm, problem, config, **operands) if run.copied]
    return run


def device_kernels(algorithm: str, problem: Problem, config: Any) -> list[tirx.PrimFunc]:
    """Return the lowered kernels of an algorithm, open sizes being those of the problem's workload."""
    func, _ = take_out(lower(problem, select(problem, SM_90, config, algorithm), SM_90, KERNEL_NAME), SM_90)
    sizes = {name: getattr(problem.workload, name) for name in problem.open_sizes}
    return device_functions(with_intrinsics(func), SM_90, sizes)


def emulated_runs(algorithm: str, problem: Problem, config: Any, **operands: np.ndarray) -> list[Emulator]:
    """Check the result of an algorithm's kernels in the emulator, and return their runs."""
    operands = operands or random_operands(problem.workload)
    arrays = {name: array.copy() for name, array in operands.items()}
    runs = [Emulator(kernel, arrays) for kernel in device_kernels(algorithm, problem, config)]
    check_result(problem.workload, operands, arrays["output"], precision=problem.precision)
    return runs


def compiled(algorithm: str, problem: Problem, config: Any, target: tvm.target.Target) -> str:
    """Check that a kernel spills nothing and leaves room for its threads, and return its PTX."""
    arch, selection = str(target.attrs["arch"]), select(problem, target, config, algorithm)
    executable, *_ = build_kernel(problem, selection, target)
    source = str(executable.mod.imports[0].inspect_source())
    kernels, ptx, _ = cuda.assembled(source, arch)
    for kernel in kernels:
        assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
        assert kernel.registers * selection.config.threads <= 65536
    return ptx
