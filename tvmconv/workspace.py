"""The memory that a kernel takes beside its operands while it runs: a weight laid out, windows, the sums of parts.

On a GPU it belongs to the call, as the output does, and so to the stream or the CUDA graph that the call is made in:
TVM's own pool knows of neither. On a CPU TVM has a pool for each thread, whose pages stay warm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym.analyzer import Analyzer

from .compute.open_sizes import VARIABLES
from .substitution import substitute
from .targets import backend_of

Spec = tuple[tuple[Any, ...], str]
"""The shape and dtype of an array."""


@dataclass(frozen=True)
class Workspace:
    """The memory that a kernel takes, and the part of it that a call has to pass."""

    nbytes: int
    """The bytes in all, without memory that single threads of a CPU take for their present task; where the batch is
    open, those for a batch of one."""
    parameters: tuple[tuple[tuple[int, ...], str], ...]
    """The shape and dtype of each array that the kernel takes after its output: all on a GPU, none on a CPU. Where the
    batch is open, they are those for a batch of one: `sized` has the others."""
    batched: tuple[int | None, ...] = ()
    """The axis of each array that grows with an open batch, None for one that does not; nothing for a known batch."""

    def sized(self, batch: Any) -> tuple[Spec, ...]:
        """Return the shape and dtype of each array for a batch, which may be an expression of TVM."""
        axes = self.batched or (None,) * len(self.parameters)
        return tuple(
            (tuple(size * batch if place == axis else size for place, size in enumerate(shape)), dtype)
            for (shape, dtype), axis in zip(self.parameters, axes, strict=True)
        )


NO_WORKSPACE = Workspace(0, ())
"""The workspace of sparse kernels and of serial twins, which have all memory in themselves."""


def take_out(func: tirx.PrimFunc, target: tvm.target.Target) -> tuple[tirx.PrimFunc, Workspace]:
    """Return a scheduled function with its workspace, on a GPU, as parameters after the output, and the workspace.

    Before: `def kernel(x, w, output): packed = alloc(); for ...: packed[...] = ...; for ...: output[...] = ...`.
    After: `def kernel(x, w, output, packed): for ...: packed[...] = ...; for ...: output[...] = ...`.
    """
    root = func.body.block
    taken = _shared(root)
    parameters = tuple((tuple(map(_for_one, buffer.ty.shape)), str(buffer.ty.dtype)) for buffer in taken)
    nbytes = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in parameters)
    if not backend_of(target).workspace_is_passed:
        return func, Workspace(nbytes, ())
    axes = tuple(map(_batched_axis, taken))
    workspace = Workspace(nbytes, parameters, () if set(axes) <= {None} else axes)
    kept = [buffer for buffer in root.alloc_buffers if buffer not in taken]
    body = SBlockRealize([], True, SBlock([], [], [], root.name_hint, root.body, alloc_buffers=kept))
    return tirx.PrimFunc([*func.params, *taken], body, func.ret_type, attrs=func.attrs), workspace


def _for_one(size: tirx.PrimExpr) -> int:
    """Return a size of a workspace for a batch of one."""
    return int(Analyzer().simplify(substitute(size, {VARIABLES["batch"]: 1})))


def _batched_axis(buffer: tvm.ir.Var) -> int | None:
    """Return the axis of a workspace that is as many times as long as the batch; None where none depends on it."""
    return next((place for place, size in enumerate(buffer.ty.shape) if not isinstance(size, tirx.IntImm)), None)


def has_workspace(func: tirx.PrimFunc) -> bool:
    """Return whether a scheduled function still has a workspace in it, taken from TVM's pool while it runs."""
    return not isinstance(func.body, SBlockRealize) or bool(_shared(func.body.block))


def steps(root: SBlock) -> list[tirx.Stmt]:
    """Return the statements that a scheduled function runs one after the other; on a GPU each is a kernel."""
    return list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]


def _shared(root: SBlock) -> list[tvm.ir.Var]:
    """Return the buffers that one step leaves to another.

    Those of a single step are registers, shared memory, or a task's.
    """
    users = [_variables(step) for step in steps(root)]
    return [buffer for buffer in root.alloc_buffers if sum(buffer in used for used in users) > 1]


def _variables(step: tirx.Stmt) -> set[tvm.ir.Var]:
    found: set[tvm.ir.Var] = set()
    tvm_ffi.structural_walk(step, [(tvm.ir.Var, found.add)])
    return found
