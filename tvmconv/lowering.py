"""The one door to TVM's compiler: from a selected schedule to a kernel, and from a module to an executable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from .annotations import MIN_BLOCKS
from .arrays import GPU_ALIGNMENT
from .dispatch import Selection
from .kernel_cache import use_fast_compiler
from .problem import Problem
from .workload import ConvWorkload
from .workspace import Workspace, take_out

if TYPE_CHECKING:
    from tvm.runtime import Executable

KERNEL_NAME = "tvmconv_kernel"
"""The function of a module that holds a single kernel."""

OPAQUE = 8
"""TVM's operator pattern for functions that its fusion leaves as they are."""


class Kernel(NamedTuple):
    """A workload's kernel, compiled: it is called with the operands and the workspace's parameters."""

    executable: Executable
    """With the kernel alone, under `KERNEL_NAME`."""
    workspace: Workspace


def lower(workload: ConvWorkload, selection: Selection, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """The workload's scheduled function, named, with its operands in the order of `workload.operands`.

    It is marked as scheduled, so that TVM's own passes leave it alone inside a larger module.
    """
    func = selection.template.schedule(Problem(workload), selection.config, target).mod["main"]
    func = as_scheduled(func, name)
    return with_alignment(with_launch_bounds(with_operands(func, workload)), target)


def as_scheduled(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """The function named, and marked as scheduled."""
    return func.with_attrs({"global_symbol": name, "tirx.is_scheduled": True, "op_pattern": OPAQUE})


def with_operands(func: tirx.PrimFunc, workload: ConvWorkload) -> tirx.PrimFunc:
    """The function with parameters in the shapes of the workload's operands, for a template that takes planes as rows.

    An index beyond the end of a row then is one in the next, which is where it lies.
    Before: `x: T.Buffer((1, 8, 1, 196), "float32")`. After: `x: T.Buffer((1, 8, 14, 14), "float32")`.
    """
    shapes = [shape for shape, _ in workload.operands.values()]
    if shapes == [tuple(map(int, old.ty.shape)) for old in func.params]:
        return func
    parameters = zip(func.params, shapes, strict=True)
    return _with_parameters(func, {old: tirx.decl_buffer(shape, old.ty.dtype, old.name) for old, shape in parameters})


def with_launch_bounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with `MIN_BLOCKS` as TVM's attribute of a kernel, which no schedule primitive can set.

    Before: `for tx in T.thread_binding(256, ..., annotations={"tvmconv.min_blocks": 2}): ...`.
    After: `for tx in T.thread_binding(256, ...): with T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 2): ...`.
    """

    def bounded(loop: tirx.For) -> tirx.For:
        annotations = dict(loop.annotations)
        if (blocks := annotations.pop(MIN_BLOCKS, None)) is None:
            return loop
        body = tirx.AttrStmt(0, "tirx.launch_bounds_min_blocks_per_sm", blocks, loop.body)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)

    return tvm_ffi.structural_map(func, (tirx.For, bounded))


def with_alignment(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """The function with parameters that are aligned to no more than arrays are: `GPU_ALIGNMENT`, or an element.

    TVM assumes 64 bytes, and CPU code made so crashes on the arrays of NumPy and on slices, which are aligned to less.
    Before: `x: T.Buffer((1024,), "float32")`. After: `x: T.Buffer((1024,), "float32", align=4)`.
    """

    def aligned(old: tvm.ir.Var) -> tvm.ir.Var:
        alignment = itemsize(old.ty.dtype) if target.kind.name == "llvm" else GPU_ALIGNMENT
        return tirx.decl_buffer(old.ty.shape, old.ty.dtype, old.name, data_alignment=alignment)

    return _with_parameters(func, {old: aligned(old) for old in func.params})


def itemsize(dtype: Any) -> int:
    """Bytes of an element."""
    return -(-int(tvm.DataType(str(dtype)).bits) // 8)


def _with_parameters(func: tirx.PrimFunc, fresh: dict[tvm.ir.Var, tvm.ir.Var]) -> tirx.PrimFunc:
    body = tvm_ffi.structural_map(func.body, (tvm.ir.Var, lambda var: fresh.get(var, var)))
    return tirx.PrimFunc([fresh[old] for old in func.params], body, func.ret_type, attrs=func.attrs)


def build(mod: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None) -> Executable:
    """Compiles a module of kernels, or a Relax module, for a target; by TVM's default pipeline for it unless told."""
    use_fast_compiler()
    current = tvm.transform.PassContext.current()
    # What schedules mark as asynchronous becomes cp.async; without this they would be ordinary copies.
    config = {**current.config, "tirx.use_async_copy": target.kind.name == "cuda"}
    # By itself TVM uses the target's own pipeline, which fuses operators, for a GPU only.
    with tvm.transform.PassContext(current.opt_level, config=config):
        return tvm.compile(mod, target, relax_pipeline=pipeline or tvm.relax.get_default_pipeline(target))


def build_kernel(workload: ConvWorkload, selection: Selection, target: tvm.target.Target) -> Kernel:
    """The workload's kernel, in a module of its own."""
    return build_function(lower(workload, selection, target, KERNEL_NAME), target)


def build_function(func: tirx.PrimFunc, target: tvm.target.Target) -> Kernel:
    """The kernel of a scheduled function of the name `KERNEL_NAME`."""
    func, workspace = take_out(func, target)
    return Kernel(build(tvm.IRModule({KERNEL_NAME: func}), target), workspace)
