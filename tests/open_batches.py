"""Kernels with an open batch as those of a known one."""

from __future__ import annotations

from tvm import tirx


def of_batch(func: tirx.PrimFunc, batch: int) -> tirx.PrimFunc:
    """Return a function with a number for its open batch: of serial twins without one TVM makes no code for a CPU.

    It estimates the size of a thread's memory, and where threads are loops this goes past 32 bits.
    """
    x, *_ = func.params
    shape = batch, *x.ty.shape[1:]
    return func.specialize({x: tirx.decl_buffer(shape, x.ty.dtype, x.name, data_alignment=x.ty.data_alignment)})
