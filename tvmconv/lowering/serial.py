"""Serial twins, which run a CUDA schedule without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import tirx

from tvmconv.problem.workload import Operands

TWIN_TARGET = {"kind": "llvm", "opt-level": 0}
"""The target that serial twins are built for, without optimisation.

LLVM takes minutes to optimise a thread of a sparse kernel, which runs in a second as it is.
"""

ASYNCHRONOUS = "software_pipeline_async_stages"


def serial_twin(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the scheduled function with its thread bindings, vthreads and unrolled loops as serial loops.

    It builds for the CPU and gives the same numbers, shared and local buffers included. It cannot show a missing
    barrier or a race. To unroll its loops would take a third of the time that it takes to build.

    Copies that are asynchronous on a GPU are synchronous here, still in the order of their software pipeline.

    Before: `for tx in T.thread_binding(32, thread="threadIdx.x")`. After: `for tx in range(32)`.
    """

    def serial(loop: tirx.For) -> tirx.For:
        annotations = {name: value for name, value in loop.annotations.items() if name != ASYNCHRONOUS}
        if loop.kind in (tirx.ForKind.THREAD_BINDING, tirx.ForKind.UNROLLED):
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, None, annotations)
        if len(annotations) == len(loop.annotations):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, None, annotations)

    return tvm_ffi.structural_map(func, (tirx.For, serial))


def of_sizes(func: tirx.PrimFunc, operands: Operands) -> tirx.PrimFunc:
    """Return a function whose open sizes are the sizes of operands."""
    return with_shapes(func, {name: shape for name, (shape, _) in operands.items() if name in ("dy", "x", "output")})


def with_shapes(func: tirx.PrimFunc, shapes: Mapping[str, Sequence[int]]) -> tirx.PrimFunc:
    """Return a function with numbers for its open sizes, without which TVM builds no serial twin for a CPU.

    TVM estimates the size of a thread's memory, and where threads are loops this goes past 32 bits. `shapes` are by the
    names of parameters.
    """
    return func.specialize(
        {
            param: tirx.decl_buffer(shapes[name], param.ty.dtype, name, data_alignment=param.ty.data_alignment)
            for param in func.params
            if (name := param.name) in shapes
        }
    )
