"""Statements and variables of TIR, for functions that are written as statements and not scheduled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.targets.device_code import included
from tvmconv.targets.devices import WARP

from .substitution import substitute

INDEX = "int64"
"""The type of indices, which is that of the sizes in TVM's functions; TVM takes a narrower one where it is enough."""

ZERO = tirx.const(0, INDEX)

ALL_LANES = 0xFFFFFFFF
"""The mask of a warp's threads for an exchange between all of them."""

COPIES = included("schedules/cuda/device/copies.cuh")
"""The source of asynchronous copies, and of waiting for them."""


def index_variable(name: str) -> Var:
    """Return a new variable for an index."""
    return Var(name, tvm.ir.PrimType(INDEX))


def barrier() -> tirx.Stmt:
    """Return the statement with which all threads of a block wait for each other."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))


def tested(tests: list[Expr], body: tirx.Stmt) -> tirx.Stmt:
    """Return a statement that is run if all tests hold; tests that are constants other than 0 are dropped."""
    left = [test for test in tests if not (isinstance(test, tirx.IntImm) and int(test))]
    return tirx.IfThenElse(tirx.all(*left), body, None) if left else body


def sequence(steps: list[tirx.Stmt]) -> tirx.Stmt:
    """Return one statement that runs several in order."""
    return steps[0] if len(steps) == 1 else tirx.SeqStmt(steps)


def loop(var: Var, extent: Any, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.UNROLLED) -> tirx.Stmt:
    """Return a loop over a new variable, which replaces `var`; the body alone for an extent of 1."""
    extent = tirx.const(extent, INDEX) if isinstance(extent, int) else extent
    if isinstance(extent, tirx.IntImm) and int(extent) == 1:
        return substitute(body, {var: 0})
    fresh = index_variable(var.name)
    return tirx.For(fresh, tirx.const(0, INDEX), extent, kind, substitute(body, {var: fresh}))


def launched(
    body: tirx.Stmt, extents: Mapping[Var, Expr | int], buffers: list[Any], annotations: Any = None
) -> SBlockRealize:
    """Return a kernel's root block around the body that a thread runs.

    `extents` has the variable of threads with their number in a block, then that of blocks with their number;
    `annotations` are those of the loop of threads.
    """
    for (var, extent), tag in zip(extents.items(), ("threadIdx.x", "blockIdx.x"), strict=True):
        axis = tirx.IterVar(None, index_variable(tag), tirx.IterVar.ThreadIndex, tag)
        count = tirx.const(extent, INDEX) if isinstance(extent, int) else extent
        body = tirx.For(var, tirx.const(0, INDEX), count, tirx.ForKind.THREAD_BINDING, body, axis, annotations)
        annotations = None
    return SBlockRealize([], True, SBlock([], [], [], "root", body, alloc_buffers=buffers))


def cuda_call(name: str, source: str, *arguments: Any) -> tirx.Evaluate:
    """Return the statement that calls a function of CUDA, with its source."""
    return tirx.Evaluate(cuda_func_call(name, *arguments, source_code=source))


def halves(count: int) -> list[int]:
    """Return the powers of two below a power of two, the largest first."""
    return [1 << bit for bit in reversed(range(count.bit_length() - 1))]


def exchange(register: Any, join: Callable[[Any, Any], Any], distance: int, index: Expr = ZERO) -> tirx.Stmt:
    """Return the statement that joins an element of a register with that of the lane at `distance` (by XOR)."""
    return tirx.BufferStore(register, join(register[index], shuffled_xor(register[index], distance)), [index])


def shuffled_xor(value: Expr, distance: int) -> Expr:
    """Return the value of the lane whose number is that of this lane XOR `distance`."""
    return tirx.op.tvm_warp_shuffle_xor(tirx.const(ALL_LANES, "uint32"), value, distance, WARP, WARP)
