"""Functions that run in the worker processes: they build one kernel, or check and time one.

A worker gets a problem and a configuration, and makes everything else itself.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tvm
from tvm.runtime import Device, Module, Tensor

from tvmconv.checking.fused import FusedSample
from tvmconv.checking.operands import CHECKED_OUTPUTS, Sample, random_operand
from tvmconv.checking.pruning import operands_for, random_constants
from tvmconv.dispatch import select
from tvmconv.dispatch.call import Call, problem_from
from tvmconv.dispatch.registry import algorithm_of, template_from, template_name
from tvmconv.lowering import KERNEL_NAME, Kernel, build_kernel
from tvmconv.lowering.kernels import cached_skeleton
from tvmconv.lowering.workspace import Workspace
from tvmconv.problem import FusedProblem, Problem
from tvmconv.problem.constants import COMPILED_IN
from tvmconv.problem.errors import TvmconvError
from tvmconv.runtime import storage
from tvmconv.support import system
from tvmconv.targets import DeviceFacts, backend_named, backend_on, cuda, cuda_arch, has_gpu, kernel_cache

from ..templates import kernels as template_kernels
from .protocol import BuildResult, Calls

CHECKED_PRODUCTS = 2**24
"""The most products in the outputs that are checked, 0.1 seconds of a CPU: of long sums fewer outputs are checked.

`Sample` compares a few positions, or planes, in any case.
"""

WRONG_ANSWER = "[wrong answer]"
"""The beginning of the message of the error for a kernel with a wrong result."""


def initialize() -> None:
    """Prepare a new worker.

    A segmentation fault ends it at once: TVM's handler allocates memory to describe it, and waits for ever where the
    allocator is corrupted by a kernel, holding Python's lock, so that no time limit ends the worker either.
    """
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    system.follow_parent()
    cuda.load_runtime()


def build(problem: str, template: str, knobs: dict[str, Any], target: str, library: str) -> BuildResult:
    """Build a kernel and link it into a library; its CUDA code is compiled into the library's folder.

    The problem and the template are as `to_json` and `to_message` write them.
    """
    start = time.perf_counter()
    try:
        device = tvm.target.Target(target)
        executable, workspace, _ = _built(problem_from(problem), template, knobs, device)
        storage.export(executable, Path(library), target)
        folder, kernels = Path(library).parent, list[Path]()
        if sources := cuda.sources(executable.mod):
            with ThreadPoolExecutor() as pool:
                kernels += pool.map(lambda source: kernel_cache.precompile(source, cuda_arch(device), folder), sources)
    except TvmconvError as error:
        raise RuntimeError(str(error)) from None  # other errors cannot be sent back, or lose their message
    return BuildResult(library, workspace, time.perf_counter() - start, tuple(map(str, kernels)))


def _built(problem: Problem | Call, template: str, knobs: dict[str, Any], target: tvm.target.Target) -> Kernel:
    if isinstance(problem, Call):
        return template_kernels.built(problem, knobs, target)
    made_by = template_from(template)
    algorithm = algorithm_of(template_name(made_by))
    selection = select(problem, target, msgspec.convert(knobs, made_by.Config), algorithm)
    constants = None if problem.sparsity is None else random_constants(problem.workload, problem.sparsity)
    kernel = build_kernel(problem, selection, target, constants)
    cached_skeleton.cache_clear()  # the next trial has another skeleton
    return kernel


def touch(device: str) -> None:
    """Write a number to a device, such as "cuda:1", and read it; fail where that does not work."""
    tvm.runtime.tensor(np.zeros(1, "float32"), tvm.runtime.device(device)).numpy()


def describe(kind: str) -> tuple[DeviceFacts | None, str | None]:
    """Return this machine's device for targets of a kind, if there is one, and its architecture."""
    backend = backend_named(kind)
    if backend.on_gpu and has_gpu():
        tvm.cuda(0).sync()  # begins to use the driver, which TVM asks for the device's name
    with ThreadPoolExecutor(1) as pool:  # TVM's pool, which is asked for its threads, binds the one that asks to a core
        device = pool.submit(backend.facts).result()
    return device, backend.arch_here()


def evaluate(problem: str, workspace: Workspace, library: str, device: str, calls: Calls) -> list[float]:
    """Check the kernel in a library, then time it on a device: seconds of one call, averaged over each repeat.

    The CUDA code that `build` compiled lies beside the library. Every operand but the input is drawn again each time,
    and so caches are warm, a GPU's L2 too.
    """
    kernel_cache.use_fast_compiler(Path(library).parent)
    module, opened_device = tvm.runtime.load_module(library), tvm.runtime.device(device)
    arguments = _checked(problem_from(problem), workspace, module, opened_device)
    return backend_on(device).costs(module, KERNEL_NAME, arguments, opened_device, *calls)


def _checked(problem: Problem | Call, workspace: Workspace, module: Module, device: Device) -> list[Tensor]:
    """Check a problem's kernel and return its arguments."""
    try:
        if isinstance(problem, Call):
            return template_kernels.checked(problem, workspace, module, device)
        return _checked_convolution(problem, workspace, module, device)
    except AssertionError as error:
        raise RuntimeError(f"{WRONG_ANSWER} {error}") from None


def _checked_convolution(problem: Problem, workspace: Workspace, module: Module, device: Device) -> list[Tensor]:
    memory, rng = _memory(problem, device), np.random.default_rng()
    operands = memory.operands
    image, *_ = memory.tensors
    for name in memory.tensors.keys() - {image, "output"}:
        drawn = random_operand(problem, name, rng, operands[name].size)
        operands[name] = drawn.reshape(operands[name].shape)
        memory.tensors[name].copyfrom(operands[name])
    memory.unwritten.copyto(memory.tensors["output"])
    arguments = [*memory.tensors.values()]
    arguments += [tvm.runtime.empty(*parameter, device) for parameter in workspace.parameters]
    module[KERNEL_NAME](*arguments)
    outputs = min(CHECKED_OUTPUTS, CHECKED_PRODUCTS // problem.terms)
    got = memory.tensors["output"].numpy()
    if isinstance(problem, FusedProblem):
        FusedSample(problem, operands, rng, outputs).check(got)
    else:
        Sample(problem, operands, rng, outputs).check(got)
    return arguments


@dataclass(frozen=True)
class _Memory:
    """A problem's operands by name, in memory and on a device, where the output is filled with `unwritten`."""

    operands: dict[str, np.ndarray[Any, Any]]
    tensors: dict[str, Tensor]
    """The arguments that the kernel is called with, without constants that are compiled in."""
    unwritten: Tensor


@lru_cache(maxsize=1)
def _memory(problem: Problem, device: Device) -> _Memory:
    operands = operands_for(problem)
    passed = operands.keys() - (set() if problem.sparsity is None else COMPILED_IN)
    tensors = {name: tvm.runtime.tensor(array, device) for name, array in operands.items() if name in passed}
    return _Memory(operands, tensors, tvm.runtime.tensor(operands["output"], device))
