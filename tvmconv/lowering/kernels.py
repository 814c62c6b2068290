"""From a selected schedule to a kernel, dense or sparse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, TensorRegion

from tvmconv.compute import with_open_sizes, without_approximations
from tvmconv.problem import Problem
from tvmconv.problem.constants import Constants
from tvmconv.problem.errors import CodeSizeError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.template import Selection
from tvmconv.targets import backend_of, resolve_target

from .folding.folding import bind, expanded, output_blocks
from .folding.skeleton import Skeleton, make_skeleton
from .launches import build_launches
from .modules import build
from .open_sizes.pixels import with_open_planes, with_vectors_in_rows
from .open_sizes.planes import within_output
from .open_sizes.ranges import limited
from .serial import TWIN_TARGET, of_sizes, serial_twin
from .signatures import as_scheduled, given_in_channels_last, with_alignment, with_launch_bounds, with_operands
from .workspace import NO_WORKSPACE, Workspace, take_out

if TYPE_CHECKING:
    from tvm.runtime import Executable

KERNEL_NAME = "tvmconv_kernel"
"""The name of the function in a module that holds a single kernel."""

_front_end = Lock()
"""Held while Python folds constants: other threads would wait anyway, and would make the same skeletons."""


class Folded(NamedTuple):
    """A lowered function with its constants in it."""

    func: tirx.PrimFunc
    pixels: int
    """The number of pixels of a thread: its multiply-adds for each weight."""
    blocks: int
    """The number of blocks of output channels, each with separate code."""


class Kernel(NamedTuple):
    """A problem's kernel, compiled; it is called with the operands that are not compiled in, then the workspace."""

    executable: Executable
    """The module that has the kernel and no other."""
    workspace: Workspace
    folded: Folded | None = None
    """The lowered function of a sparse kernel; None for a dense one."""


def build_kernel(
    problem: Problem,
    selection: Selection,
    target: tvm.target.Target,
    constants: Constants | None = None,
    name: str = KERNEL_NAME,
) -> Kernel:
    """Build the problem's kernel, in a separate module, with the constants of a sparse problem in it.

    `name` is that of the function: functions of one network need different ones. Threads may build several side by
    side. Raises `InvalidArgumentError` for a weight of another shape, or with NaN or infinity in it, and
    `CodeSizeError`.
    """
    if constants is None:
        return build_function(lower(problem, selection, target, name), target)
    with _front_end:
        folded = fold(problem, selection, target, constants)
    return Kernel(build_launches(folded.func, target, name), NO_WORKSPACE, folded)


def build_function(func: tirx.PrimFunc, target: tvm.target.Target) -> Kernel:
    """Build the kernel of a scheduled function, under its name."""
    func, workspace = take_out(func, target)
    func = limited(func, workspace, target)
    return Kernel(build(tvm.IRModule({str(func.attrs["global_symbol"]): func}), target), workspace)


def build_twin(
    problem: Problem,
    selection: Selection,
    target: tvm.target.Target,
    constants: Constants | None = None,
    workload: ConvWorkload | None = None,
) -> Kernel:
    """Build the serial twin of the kernel that `build_kernel` makes, for the CPU of this machine.

    Where the problem leaves sizes open the twin is for the sizes of `workload`.
    """
    func = lower(problem, selection, target, KERNEL_NAME)
    if workload is not None:
        func = of_sizes(func, problem.operands_of(workload))
    if constants is None:
        return build_twin_function(func)
    cpu = resolve_target(TWIN_TARGET)
    folded = _bound(make_skeleton(serial_twin(func), cpu), problem, selection, constants)
    return Kernel(build_launches(folded.func, cpu, KERNEL_NAME), NO_WORKSPACE, folded)


def build_twin_function(func: tirx.PrimFunc) -> Kernel:
    """Build the serial twin of a scheduled function, under its name, for the CPU of this machine."""
    twin = tvm.IRModule({str(func.attrs["global_symbol"]): serial_twin(func)})
    return Kernel(build(twin, resolve_target(TWIN_TARGET)), NO_WORKSPACE)


def lower(problem: Problem, selection: Selection, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """Return the problem's scheduled function, named, with its operands in the order of `problem.operands`.

    It is marked as scheduled, so that TVM's own passes leave it alone inside a larger module. Tensor intrinsics are
    still plain loops in it, which compute the same: `build` puts them in.
    """
    func = with_open_planes(selection.template.schedule(problem, selection.config, target).mod, problem)
    func = _with_mirrored_taps(func, problem)
    if not backend_of(target).on_gpu or problem.sparsity is not None:
        func = without_approximations(func)
    if problem.sparsity is None:
        func = within_output(func, problem)
        if backend_of(target).on_gpu:
            func = with_vectors_in_rows(func, problem)
        func = with_launch_bounds(with_operands(func, problem.operands_of(with_open_sizes(problem))))
    func = with_alignment(as_scheduled(func, name), target)
    if not problem.channels_last:
        return func
    names = zip(func.params, problem.operands, strict=True)
    return given_in_channels_last(func, [param.name for param, name in names if name in problem.in_channels_last])


def fold(problem: Problem, selection: Selection, target: tvm.target.Target, constants: Constants) -> Folded:
    """Return the lowered function of a sparse problem, with its constants in it."""
    shared = msgspec.structs.replace(problem, sparsity=0.0)
    skeleton = cached_skeleton(shared, replace(selection, reason="what is common to all weights"), str(target))
    products, limit = skeleton.pixels * int(np.count_nonzero(constants["w"])), backend_of(target).max_products
    if products > limit:
        raise CodeSizeError(
            f"{problem.workload}: {products} multiply-adds of a thread; at most {limit} are compiled in"
        )
    return _bound(skeleton, problem, selection, constants)


def _bound(skeleton: Skeleton, problem: Problem, selection: Selection, constants: Constants) -> Folded:
    dense = expanded(problem.workload, constants)
    blocks = output_blocks(dense["w"], selection.config.block_m)
    return Folded(bind(skeleton, dense, blocks), skeleton.pixels, len(blocks))


@lru_cache(maxsize=64)
def cached_skeleton(problem: Problem, selection: Selection, target: str) -> Skeleton:
    """Return the lowered function that kernels of a problem share, whatever their weights; it is cached."""
    resolved = resolve_target(target)
    return make_skeleton(lower(problem, selection, resolved, KERNEL_NAME), resolved)


def _with_mirrored_taps(func: tirx.PrimFunc, problem: Problem) -> tirx.PrimFunc:
    """Return the function with the taps of its weight read in reverse along both axes, if the problem is mirrored.

    Loops, staging and vectors of the schedule stay: lanes along a filter are then read one by one, backwards.

    Before: `taps[t] = w[c, 0, t // 3, t % 3]`. After: `taps[t] = w[c, 0, 2 - t // 3, 2 - t % 3]`.
    """
    if not problem.mirrored:
        return func
    weight = func.params[list(problem.workload.operands).index("w")]
    rows, columns = problem.workload.kernel

    def from_end(size: int, index: Any) -> Any:
        if isinstance(index, tvm.ir.Range):
            return tvm.ir.Range.from_min_extent(size - index.extent - index.min, index.extent)
        return size - 1 - index

    def mirrored_index(indices: Sequence[Any]) -> list[Any]:
        *filters, r, s = indices
        return [*filters, from_end(rows, r), from_end(columns, s)]

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        return weight[tuple(mirrored_index(load.indices))] if load.source.same_as(weight) else load

    def covered(region: TensorRegion) -> TensorRegion:
        return (
            TensorRegion(weight, mirrored_index(region.region), region.ty) if region.source.same_as(weight) else region
        )

    return func.with_body(tvm_ffi.structural_map(func.body, [(TensorLoad, loaded), (TensorRegion, covered)]))
