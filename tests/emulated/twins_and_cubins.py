"""Checks of a template's kernels without a GPU: numbers of twins and an emulator, and resources of machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tvmconv import ConvWorkload
from tvmconv.checking.fused import FusedSample
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_kernel, build_twin, lower
from tvmconv.lowering.gpu.conditions import with_tests_before_loops
from tvmconv.lowering.gpu.intrinsics import with_intrinsics
from tvmconv.lowering.workspace import take_out
from tvmconv.problem import OPEN_SIZES, FusedProblem, Problem
from tvmconv.targets import cuda, resolve_target
from tvmconv.testing import check_result, random_operands

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})


def run_twin(
    algorithm: str, problem: Problem, config: Any, at: ConvWorkload | None = None, **operands: np.ndarray
) -> None:
    """Build the serial twin of a kernel of an algorithm, and check its result, for a workload of an open problem."""
    workload = at or problem.workload
    twin = build_twin(problem, select(problem, SM_90, config, algorithm), SM_90, workload=at)
    operands = operands or random_operands(workload, direction=problem.direction)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    memory = [tvm.runtime.empty(*parameter) for parameter in twin.workspace.parameters]
    twin.executable[KERNEL_NAME](*tensors, *memory)
    check_result(workload, operands, tensors[-1].numpy(), precision=problem.precision, direction=problem.direction)


def run_emulated(algorithm: str, problem: Problem, config: Any, **operands: np.ndarray) -> Emulator:
    """Check the result of an algorithm's kernels in the emulator, and return the run of the one that copies."""
    (run,) = [run for run in emulated_runs(algorithm, problem, config, **operands) if run.copied]
    return run


def emulated_runs(algorithm: str, problem: Problem, config: Any, **operands: np.ndarray) -> list[Emulator]:
    """Check the result of an algorithm's kernels in the emulator, and return their runs."""
    return emulated(lowered(algorithm, problem, config), problem, **operands)


def lowered(algorithm: str, problem: Problem, config: Any) -> tirx.PrimFunc:
    """Return an algorithm's scheduled function with the functions of CUDA that it calls."""
    return with_intrinsics(lower(problem, select(problem, SM_90, config, algorithm), SM_90, KERNEL_NAME))


def device_kernels(func: tirx.PrimFunc, at: ConvWorkload | None = None) -> list[tirx.PrimFunc]:
    """Return the kernels of a scheduled function as they run on a GPU, with numbers for open sizes of a workload."""
    func, _ = take_out(with_intrinsics(func), SM_90)
    if at is None:
        return device_functions(func, SM_90)
    sizes = {name: getattr(at, name) for name in OPEN_SIZES} | dict(
        zip(("rows", "columns"), at.output_size, strict=True)
    )
    return device_functions(with_tests_before_loops(func), SM_90, sizes)


def emulated(
    func: tirx.PrimFunc, problem: Problem, at: ConvWorkload | None = None, **operands: np.ndarray
) -> list[Emulator]:
    """Check the result of a scheduled function in the emulator, of open sizes for a workload, and return its runs."""
    workload = at or problem.workload
    operands = operands or random_operands(workload, direction=problem.direction)
    arrays = {name: array.copy() for name, array in operands.items()}
    kernels = device_kernels(func, workload if problem.open_sizes else None)
    runs = [Emulator(kernel, arrays) for kernel in kernels]
    if isinstance(problem, FusedProblem):
        FusedSample(problem, operands, np.random.default_rng(0), arrays["output"].size).check(arrays["output"])
    else:
        check_result(workload, operands, arrays["output"], precision=problem.precision, direction=problem.direction)
    return runs


def compiled(algorithm: str, problem: Problem, config: Any, target: tvm.target.Target) -> str:
    """Check that a kernel spills nothing and leaves room for its threads, and return its PTX."""
    arch, selection = str(target.attrs["arch"]), select(problem, target, config, algorithm)
    executable, *_ = build_kernel(problem, selection, target)
    source = str(executable.mod.imports[0].inspect_source())
    kernels, ptx, _ = cuda.assembled(source, arch)
    for kernel in kernels:
        assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
        resident = getattr(selection.config, "min_blocks_per_sm", 1)
        assert kernel.registers * selection.config.threads * resident <= 65536
    return ptx
