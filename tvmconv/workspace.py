"""The memory that a kernel takes beside its operands while it runs: a weight laid out, windows, the sums of parts.

On a GPU it belongs to the call, as the output does, and so to the stream or the CUDA graph that the call is made in:
TVM's own pool knows of neither. On a CPU TVM has a pool for each thread, whose pages stay warm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from .compute.open_sizes import VARIABLES
from .substitution import evaluated
from .targets import backend_of

Spec = tuple[tuple[Any, ...], str]
"""The shape and dtype of an array."""


class Growth(NamedTuple):
    """The growth of an array with an open batch."""

    axis: int
    """The axis that is as many times as long as for a batch of one."""
    most: int | None = None
    """The largest batch that the array is used for, and grows to; None for one that is used for all."""

    def images(self, batch: Any) -> Any:
        """Return the number of images that the array has room for."""
        if self.most is None:
            return batch
        return min(batch, self.most) if isinstance(batch, int) else tirx.min(batch, self.most)


Array = tuple[Spec, Growth | None]
"""An array of a workspace for a batch of one, and its growth with an open batch."""


@dataclass(frozen=True)
class Workspace:
    """The memory that a kernel takes, and the part of it that a call has to pass."""

    nbytes: int
    """The bytes in all, without memory that single threads of a CPU take for their present task; where the batch is
    open, those for a batch of one, and on a CPU without arrays whose size depends on an open height or width."""
    parameters: tuple[tuple[tuple[int, ...], str], ...]
    """The shape and dtype of each array that the kernel takes after its output: all on a GPU, none on a CPU. Where the
    batch is open, they are those for a batch of one: `sized` has the others."""
    growth: tuple[Growth | None, ...] = ()
    """The growth of each array with an open batch, None for one that has none; nothing for a known batch."""

    @classmethod
    def passed(cls, arrays: Iterable[Array]) -> Workspace:
        """Return the workspace of arrays that a call passes, all of it."""
        known = list(arrays)
        nbytes = sum(prod(shape) * np.dtype(dtype).itemsize for (shape, dtype), _ in known)
        growth = tuple(each for _, each in known)
        return cls(nbytes, tuple(spec for spec, _ in known), growth if any(growth) else ())

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that a call passes."""
        return tuple(zip(self.parameters, self.growth or (None,) * len(self.parameters), strict=True))

    def sized(self, batch: Any) -> tuple[Spec, ...]:
        """Return the shape and dtype of each array for a batch, which may be an expression of TVM."""

        def grown(shape: tuple[int, ...], growth: Growth) -> tuple[Any, ...]:
            before, length, behind = shape[: growth.axis], shape[growth.axis], shape[growth.axis + 1 :]
            return *before, length * growth.images(batch), *behind

        return tuple((grown(shape, growth) if growth else shape, dtype) for (shape, dtype), growth in self.arrays)


NO_WORKSPACE = Workspace(0, ())
"""The workspace of sparse kernels and of serial twins, which have all memory in themselves."""


def take_out(func: tirx.PrimFunc, target: tvm.target.Target) -> tuple[tirx.PrimFunc, Workspace]:
    """Return a scheduled function with its workspace, on a GPU, as parameters after the output, and the workspace.

    Before: `def kernel(x, w, output): packed = alloc(); for ...: packed[...] = ...; for ...: output[...] = ...`.
    After: `def kernel(x, w, output, packed): for ...: packed[...] = ...; for ...: output[...] = ...`.
    """
    root = func.body.block
    taken = _shared(root)
    workspace = Workspace.passed(_array(buffer) for buffer in taken if not _has_open_planes(buffer))
    if not backend_of(target).workspace_is_passed:
        return func, Workspace(workspace.nbytes, ())
    kept = [buffer for buffer in root.alloc_buffers if buffer not in taken]
    body = SBlockRealize([], True, SBlock([], [], [], root.name_hint, root.body, alloc_buffers=kept))
    return tirx.PrimFunc([*func.params, *taken], body, func.ret_type, attrs=func.attrs), workspace


def _array(buffer: tvm.ir.Var) -> Array:
    """Return what a call has to know of a buffer; one of its sizes may be a multiple of the batch."""
    sizes = buffer.ty.shape
    shape = tuple(evaluated(size, {VARIABLES["batch"]: 1}) for size in sizes)
    growth = (Growth(place) for place, size in enumerate(sizes) if not isinstance(size, tirx.IntImm))
    return (shape, str(buffer.ty.dtype)), next(growth, None)


def _has_open_planes(buffer: tvm.ir.Var) -> bool:
    """Return whether a buffer has a size that depends on more than the batch; only CPUs have kernels with such."""
    variables = {var for size in buffer.ty.shape for var in undefined_vars(size)}
    return not variables <= {VARIABLES["batch"]}


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
