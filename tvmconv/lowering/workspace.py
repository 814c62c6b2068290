"""The memory that a kernel takes beside its operands while it runs: a weight laid out, windows, the sums of parts.

On a GPU it belongs to the call, as the output does, and so to the stream or the CUDA graph that the call is made in:
TVM's own pool knows of neither. On a CPU TVM has a pool for each thread, whose pages stay warm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.open_sizes import COLUMNS, ROWS, VARIABLES
from tvmconv.compute.substitution import evaluated
from tvmconv.problem.expressions import Expression
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

Spec = tuple[tuple[Any, ...], str]
"""The shape and dtype of an array."""

SYMBOLS: dict[str, Any] = {**VARIABLES, "rows": ROWS, "columns": COLUMNS}
"""The variables of sizes that are known only when a kernel runs, by the names that `Workspace.parameters` has them by;
"rows" and "columns" are those of the output."""


def _least(*sizes: Any) -> Any:
    return min(sizes) if all(isinstance(size, int) for size in sizes) else tirx.min(*sizes)


FUNCTIONS: dict[str, Callable[..., Any]] = {"T.min": _least}
"""The names of functions in expressions of sizes as TVM writes them."""


@dataclass(frozen=True)
class Workspace:
    """The memory that a kernel takes, and the part of it that a call has to pass."""

    nbytes: int
    """The bytes in all, without memory that single threads of a CPU take for their present task; where the batch is
    open, those for a batch of one, and without arrays whose size depends on an open height or width."""
    parameters: tuple[tuple[tuple[int | str, ...], str], ...]
    """The shape and dtype of each array that the kernel takes after its output: all on a GPU, none on a CPU. A length
    that is known only when the kernel runs is an expression, such as "batch * 784"; a kernel for known sizes has none.
    """

    @classmethod
    def passed(cls, arrays: Iterable[Spec]) -> Workspace:
        """Return a workspace whose arrays are all passed by a call; their sizes may be expressions of TVM."""
        known = list(arrays)
        parameters = tuple((tuple(map(_parameter, shape)), dtype) for shape, dtype in known)
        return cls(_bytes_of_an_image(known), parameters)

    def sized(self, workload: ConvWorkload) -> tuple[Spec, ...]:
        """Return the shape and dtype of each array for a workload, whose sizes may be expressions of TVM."""
        rows, columns = workload.output_size
        sizes = {name: getattr(workload, name) for name in VARIABLES}
        return self.with_sizes({**sizes, "rows": rows, "columns": columns})

    def with_sizes(self, sizes: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Return the shape and dtype of each array for sizes by the names of `SYMBOLS`."""
        return tuple((tuple(_evaluated(size, sizes) for size in shape), dtype) for shape, dtype in self.parameters)


NO_WORKSPACE = Workspace(0, ())
"""The workspace of sparse kernels and of serial twins, which have all memory in themselves."""


def take_out(func: tirx.PrimFunc, target: tvm.target.Target) -> tuple[tirx.PrimFunc, Workspace]:
    """Return a scheduled function with its workspace, on a GPU, as parameters after the output, and the workspace.

    Before: `def kernel(x, w, output): packed = alloc(); for ...: packed[...] = ...; for ...: output[...] = ...`.
    After: `def kernel(x, w, output, packed): for ...: packed[...] = ...; for ...: output[...] = ...`.
    """
    root = func.body.block
    passed = passed_between_statements(root)
    arrays = [(tuple(buffer.ty.shape), str(buffer.ty.dtype)) for buffer in passed]
    if not backend_of(target).workspace_is_passed:
        return func, Workspace(_bytes_of_an_image(arrays), ())
    kept = [buffer for buffer in root.alloc_buffers if buffer not in passed]
    body = SBlockRealize([], True, SBlock([], [], [], root.name_hint, root.body, alloc_buffers=kept))
    return tirx.PrimFunc([*func.params, *passed], body, func.ret_type, attrs=func.attrs), Workspace.passed(arrays)


def _parameter(size: Any) -> int | str:
    """Return a size of an array as an integer, or an expression as text."""
    if isinstance(size, (int, tirx.IntImm)):
        return int(size)
    return str(str(Analyzer().simplify(size)))  # the inner one is of a class of TVM's own


def _evaluated(size: int | str, sizes: Mapping[str, Any]) -> Any:
    return Expression(size, FUNCTIONS)(sizes) if isinstance(size, str) else size


def _bytes_of_an_image(arrays: Iterable[Spec]) -> int:
    """Return the bytes, for a batch of one, of the arrays whose sizes depend on nothing but the batch."""
    nbytes = 0
    for shape, dtype in arrays:
        if {var for size in shape if not isinstance(size, int) for var in undefined_vars(size)} <= {VARIABLES["batch"]}:
            lengths = (size if isinstance(size, int) else evaluated(size, {VARIABLES["batch"]: 1}) for size in shape)
            nbytes += prod(lengths) * np.dtype(dtype).itemsize
    return nbytes


def has_workspace(func: tirx.PrimFunc) -> bool:
    """Return whether a scheduled function still has a workspace in it, taken from TVM's pool while it runs."""
    if not isinstance(func.body, SBlockRealize):
        return True
    root = func.body.block
    return bool(passed_between_statements(root)) or any(
        isinstance(step, tirx.AllocBuffer) for step in statements_of(root)
    )


def statements_of(root: SBlock) -> list[tirx.Stmt]:
    """Return the statements that a scheduled function runs one after the other; on a GPU each is a kernel."""
    return list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]


def passed_between_statements(root: SBlock) -> list[tvm.ir.Var]:
    """Return the buffers that more than one step uses.

    Those of a single step are registers, shared memory, or a task's.
    """
    users = [_variables(step) for step in statements_of(root)]
    return [buffer for buffer in root.alloc_buffers if sum(buffer in used for used in users) > 1]


def _variables(step: tirx.Stmt) -> set[tvm.ir.Var]:
    variables: set[tvm.ir.Var] = set()
    tvm_ffi.structural_walk(step, [(tvm.ir.Var, variables.add)])
    return variables
