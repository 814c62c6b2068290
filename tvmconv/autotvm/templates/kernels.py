"""Kernels of user-defined templates: they are built, and compared with the computation as it was defined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.runtime import Device, Module, Tensor
from tvm.s_tir import Schedule
from tvm.s_tir.stmt import SBlock

from tvmconv.checking.operands import DISTINCT
from tvmconv.dispatch.call import Call, function_named
from tvmconv.dispatch.task import Value
from tvmconv.lowering import (
    KERNEL_NAME,
    Kernel,
    as_scheduled,
    build,
    build_function,
    build_twin_function,
    with_alignment,
)
from tvmconv.lowering.workspace import Workspace, statements_of
from tvmconv.problem.errors import InvalidArgumentError, WrongResultError
from tvmconv.targets import backend_of, backend_on, device_of, resolve_target

from .config_space import ConfigEntity
from .instance import Instance

ROUNDINGS, GROWTH = 32, 8
"""The tolerance of an element, in roundings of its dtype: a constant part, and one that grows with sums.

Both count roundings of its own size and of the root mean square of all elements: the constant for errors of functions
such as exp, the other times the square root of the terms in a sum, whose order is free.
"""


def built(call: Call, knobs: Mapping[str, Value], target: tvm.target.Target) -> Kernel:
    """Build the kernel of a call with knobs as a log has them."""
    task = Instance(call, target)
    return build_function(scheduled(task, task.config(knobs)), target)


def scheduled(task: Instance, config: ConfigEntity) -> tirx.PrimFunc:
    """Return the function that a template has scheduled, ready to be built."""
    schedule, _ = task.instantiate(config)
    func = schedule.mod["main"]
    limit = task.target.attrs.get("max_threads_per_block")
    if limit is not None and (threads := _max_threads(func)) > int(limit):  # the kernel would not start
        raise InvalidArgumentError("threads of a block", threads, f"at most {limit}")
    return with_alignment(as_scheduled(func, KERNEL_NAME), task.target)


def checked(call: Call, workspace: Workspace, module: Module, device: Device) -> list[Tensor]:
    """Check a call's kernel and return its arguments; AssertionError says where it is wrong."""
    expected = _expected(call, backend_on(device.type).kind, function_named(call.template))
    arguments = [tvm.runtime.tensor(array, device) for array in expected.arrays]
    given = arguments + [tvm.runtime.empty(*parameter, device) for parameter in workspace.parameters]
    module[KERNEL_NAME](*given)
    for index, name in expected.outputs.items():
        assert_same(name, arguments[index].numpy(), expected.results[index], expected.tolerance)
    return given


def check(task: Instance, config: ConfigEntity) -> None:
    """Build and check a configuration's kernel; see `templates.TemplateTask.check`."""
    func = scheduled(task, config)
    if backend_of(task.target).arch_here() is None:
        kernel, device = build_twin_function(func), tvm.cpu()
    else:
        kernel, device = build_function(func, task.target), device_of(task.target)
    try:
        checked(task.call, kernel.workspace, kernel.executable, device)
    except AssertionError as error:
        raise WrongResultError(f"{task} with {config}: {error}") from None


@dataclass(frozen=True)
class _Expected:
    """Random inputs of a call's computation, with its results."""

    arrays: list[np.ndarray[Any, Any]]
    """The array for each argument of the kernel; outputs hold values that no kernel has written."""
    results: list[np.ndarray[Any, Any]]
    """The expected content of each array after the computation."""
    outputs: dict[int, str]
    """The names of the outputs, by their indices among the arrays."""
    tolerance: float
    """The relative tolerance; see `assert_same`."""


@lru_cache(maxsize=1)
def _expected(call: Call, kind: str, function: Any) -> _Expected:
    """Compute the expected results on a CPU by the unscheduled computation, in the dtypes of its definition.

    They are cached for the present function of the template.
    """
    task = Instance(call, resolve_target(kind))
    func = task.unscheduled()
    kernel = with_alignment(as_scheduled(_quick(func), KERNEL_NAME), cpu := resolve_target("llvm"))
    module = build(tvm.IRModule({KERNEL_NAME: kernel}), cpu)
    rng = np.random.default_rng(0)
    for draw in (rng.standard_normal, lambda count: rng.uniform(0.5, 1.5, count)):
        arrays = [_operand(tensor, draw, rng) for tensor in task.computation]
        tensors = [tvm.runtime.tensor(array, tvm.cpu()) for array in arrays]
        module[KERNEL_NAME](*tensors)
        results = [each.numpy() for each in tensors]
        if all(np.isfinite(result).all() for result in results):
            break  # else there may be a logarithm, or a root, of a negative number
    outputs = {index: tensor.name for index, tensor in enumerate(task.computation) if _is_output(tensor)}
    return _Expected(arrays, results, outputs, _tolerance(func))


def assert_same(name: str, got: np.ndarray, reference: np.ndarray, tolerance: float) -> None:
    """Assert that floats differ by at most `tolerance` times their size and the root mean square of all together.

    NaN and infinity have to be where the reference has them, and elements that are no floats have to be equal.
    """
    if not np.issubdtype(reference.dtype, np.floating):
        wrong = got != reference
    else:
        wide, exact = got.astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(exact)
        size = np.abs(np.where(finite, exact, 0))
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(finite, wide - exact, 0))
        near = difference <= tolerance * (size + np.sqrt(np.mean(size**2)))
        wrong = ~np.where(finite, near, (wide == exact) | (np.isnan(wide) & np.isnan(exact)))
    if wrong.any():
        indices = [tuple(map(int, index)) for index in np.argwhere(wrong)[:3]]
        shown = ", ".join(f"{index}: {got[index]!s} for {reference[index]!s}" for index in indices)
        raise AssertionError(f"{wrong.sum()} of {wrong.size} elements of {name} are wrong: {shown}")


def _quick(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a computation with its sums inside all loops but the last, and the first loop spread over threads.

    So a matrix product of 1024x1024 takes 0.14 s instead of 4 s. The terms of each sum keep their order.
    Before: `for i, j, k: C[i, j] += A[i, k] * B[k, j]`. After: `for i in parallel: for k, j: C[i, j] += ...`.
    """
    schedule = Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops, kinds = schedule.get_loops(block), [int(each.iter_type) for each in schedule.get(block).iter_vars]
        if len(loops) == len(kinds) and set(kinds) <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}:
            outer = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
            terms = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
            if len(outer) > 1:
                schedule.reorder(*outer[:-1], *terms, outer[-1])
                schedule.parallel(outer[0])
    return schedule.mod["main"]


def _is_output(tensor: te.Tensor) -> bool:
    return not isinstance(tensor.op, te.PlaceholderOp)


def _operand(tensor: te.Tensor, draw: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a random input, which repeats after `DISTINCT` elements, or an output filled so that gaps show."""
    shape, dtype = tuple(map(int, tensor.shape)), str(tensor.dtype)
    kind = dtype.rstrip("0123456789")
    if kind not in ("float", "int", "uint", "bool") or dtype == "uint1":
        raise InvalidArgumentError(f"dtype of {tensor.name}", dtype, "floats, integers or bool, as NumPy has them")
    if _is_output(tensor):
        return np.full(shape, np.nan if kind == "float" else True if kind == "bool" else np.iinfo(dtype).max, dtype)
    count = min(prod(shape), DISTINCT)
    drawn = draw(count) if kind == "float" else rng.integers(0, 2 if kind == "bool" else 8, count)
    return np.resize(drawn.astype(dtype), shape)


def _max_threads(func: tirx.PrimFunc) -> int:
    """Return the largest number of threads in a block of the function's kernels."""
    max_threads = 1
    for step in statements_of(func.body.block):
        extents: dict[str, int] = {}

        def visit(loop: tirx.For, extents: dict[str, int] = extents) -> None:
            if loop.thread_binding is not None and loop.thread_binding.thread_tag.startswith("threadIdx"):
                extents[str(loop.thread_binding.thread_tag)] = int(loop.extent)

        tvm_ffi.structural_walk(step, [(tirx.For, visit)])
        max_threads = max(max_threads, prod(extents.values()))
    return max_threads


def _tolerance(func: tirx.PrimFunc) -> float:
    """Return the tolerance for `assert_same`: for the coarsest float that is written and the terms in its sums."""
    written, terms = set[str](), 0

    def visit(block: SBlock) -> None:
        nonlocal terms
        written.update(str(region.source.ty.dtype) for region in block.writes)
        reduced = [int(each.dom.extent) for each in block.iter_vars if each.iter_type == tirx.IterVar.CommReduce]
        terms += prod(reduced) if reduced else 0

    tvm_ffi.structural_walk(func.body, [(SBlock, visit)])
    units = [float(np.finfo(dtype).eps) / 2 for dtype in written if dtype.startswith("float")]
    return max(units, default=0.0) * (ROUNDINGS + GROWTH * sqrt(terms))
