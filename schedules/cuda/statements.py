"""Statements of GPU kernels that schedules and passes share: asynchronous copies, and exchanges within a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr

from tvmconv.compute.statements import INDEX
from tvmconv.targets.device_code import included

from .machine import WARP

ALL_LANES = 0xFFFFFFFF
"""The mask of a warp's threads for an exchange between all of them."""

ZERO = tirx.const(0, INDEX)

COPIES = included("schedules/cuda/device/copies.cuh")
"""The source of asynchronous copies, and of waiting for them."""


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
