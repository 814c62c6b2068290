"""The switch by which the threads of a CPU treat denormal numbers as zeros."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import tvm
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.lowering import KERNEL_NAME, build_function
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import llvm, resolve_target
from tvmconv.targets.devices import host_arch
from tvmconv.targets.threads import get_num_threads

if TYPE_CHECKING:
    from tvm.runtime import Executable


class Register(NamedTuple):
    """The register of an architecture that controls denormal numbers."""

    dtype: str
    get: str
    """The LLVM function that reads the register."""
    set: str
    """The LLVM function that writes it."""
    by_address: bool
    """True if the functions take the address of a number, rather than the number."""
    bits: int
    """The bits that make zeros of denormal results and operands."""


REGISTERS = {
    "x86_64": Register("int32", "llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr", True, 0x8040),
    "aarch64": Register("int64", "llvm.aarch64.get.fpcr", "llvm.aarch64.set.fpcr", False, 1 << 24),
}
"""The registers by architecture: MXCSR with its bits FTZ and DAZ, and FPCR with its bit FZ."""


def set_flush_denormal(flush: bool) -> None:
    """Let kernels on this CPU take denormal numbers, below 1.2e-38 in float32, for zeros, or compute with them again.

    It holds for the thread that calls it, whatever it computes, for the threads that TVM spreads its kernels over, and
    for threads that it starts later; `set_num_threads` comes before it. Other threads that call kernels call it too.
    A process starts without it. Raises `InvalidArgumentError` for a value that is no bool, and on processors that
    are neither x86-64 nor 64-bit ARM.

    >>> import numpy as np
    >>> import tvmconv
    >>> small = np.full(4, 1e-30, "float32")
    >>> tvmconv.set_flush_denormal(True)
    >>> float((small * small[0] * 1e20).max())
    0.0
    >>> tvmconv.set_flush_denormal(False)
    >>> bool((small * np.float32(1e-10) > 0).all())
    True
    """
    if not isinstance(flush, bool):
        raise InvalidArgumentError("flush", flush, "True or False")
    if (architecture := host_arch()) not in REGISTERS:
        raise InvalidArgumentError("flush", flush, f"a processor of {' or '.join(REGISTERS)}; this is {architecture}")
    register = REGISTERS[architecture]
    states = tvm.runtime.empty((get_num_threads(),), register.dtype)
    _kernel(register)(states, ~register.bits, register.bits if flush else 0)


@cache
def _kernel(register: Register) -> Any:
    """Return the kernel of `function_of` for this machine."""
    return llvm.function_of(compiled(function_of(register), "llvm"), KERNEL_NAME)


def compiled(func: tirx.PrimFunc, target: Any) -> Executable:
    """Return a function's code for a target."""
    return build_function(func, resolve_target(target)).executable


def function_of(register: Register) -> tirx.PrimFunc:
    """Return the function that keeps some bits of the register and sets others, in every thread of TVM's pool.

    It is a parallel loop with an iteration for each thread: TVM runs one in each.
    """
    count, step = tirx.Var("count", "int32"), tirx.Var("thread", "int32")
    kept, added = (tirx.Var(name, register.dtype) for name in ("kept", "added"))
    states = tirx.decl_buffer((count,), register.dtype, "states")
    if register.by_address:
        reads = tirx.Evaluate(tirx.call_llvm_intrin("void", register.get, states.access_ptr("w", offset=step)))
        writes = tirx.call_llvm_intrin("void", register.set, states.access_ptr("r", offset=step))
    else:
        reads = tirx.BufferStore(states, tirx.call_llvm_intrin(register.dtype, register.get), [step])
        writes = tirx.call_llvm_intrin("void", register.set, states[step])
    change = tirx.BufferStore(states, (states[step] & kept) | added, [step])
    body = tirx.SeqStmt([reads, change, tirx.Evaluate(writes)])
    loop = tirx.For(step, tirx.const(0, "int32"), count, tirx.ForKind.PARALLEL, body)
    root = SBlockRealize([], True, SBlock([], [], [], "root", loop))
    func = tirx.PrimFunc([states, kept, added], root)
    return func.with_attrs({"tirx.noalias": True, "s_tir": True, "global_symbol": KERNEL_NAME})
