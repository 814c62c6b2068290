"""Running a CUDA schedule without a GPU."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def serial_twin(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same scheduled function with its thread bindings, vthreads too, as serial loops.

    It builds for the CPU and gives the same numbers, shared and local buffers included. What it cannot show is a
    missing barrier or a race.

    Before: `for tx in T.thread_binding(32, thread="threadIdx.x")`. After: `for tx in range(32)`.
    """

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(func, (tirx.For, serial))
