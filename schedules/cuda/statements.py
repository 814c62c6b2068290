"""Statements of GPU kernels that schedules and passes share: asynchronous copies, and exchanges within a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr

from tvmconv.compute.statements import INDEX

from .machine import WARP

ALL_LANES = 0xFFFFFFFF
"""The mask of a warp's threads for an exchange between all of them."""

ZERO = tirx.const(0, INDEX)

COPY_SOURCE = """
__device__ __forceinline__ void tvmconv_copy_{bytes}(void* shared, const void* global, int inside) {{
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {bytes}, %2;"
    :: "r"(address), "l"(global), "r"(inside ? {bytes} : 0) : "memory");
}}
"""
"""An asynchronous copy of 16, 8 or 4 bytes, or of none: what is missing then is zeros, and nothing is read."""

COMMIT_SOURCE = """
__device__ __forceinline__ void tvmconv_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
"""

WAIT = """
  switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 6;" ::: "memory");
  }
"""

READY_SOURCE = f"""
__device__ __forceinline__ void tvmconv_ready(int pending) {{{WAIT}  __syncthreads();
}}
"""
"""The chunk that was copied `pending` chunks before the last one is in shared memory, for all threads."""


def cuda_call(name: str, source: str, *arguments: Any) -> tirx.Evaluate:
    """Return the statement that calls a function of CUDA, with its source."""
    return tirx.Evaluate(cuda_func_call(name, *arguments, source_code=source))


def halves(count: int) -> list[int]:
    """Return the powers of two below a power of two, the largest first."""
    return [1 << bit for bit in reversed(range(count.bit_length() - 1))]


def exchange(register: Any, join: Callable[[Any, Any], Any], distance: int, place: Expr = ZERO) -> tirx.Stmt:
    """Return the statement that joins a thread's value with that of the lane whose number differs in one bit."""
    return tirx.BufferStore(register, join(register[place], exchanged(register[place], distance)), [place])


def exchanged(value: Expr, distance: int) -> Expr:
    """Return the value that the lane has whose number differs in one bit."""
    return tirx.op.tvm_warp_shuffle_xor(tirx.const(ALL_LANES, "uint32"), value, distance, WARP, WARP)
