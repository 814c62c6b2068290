"""Kernels that a GPU launches while the previous kernel is still running, for which they wait before any read.

Normally a GPU begins to launch a kernel when all results of the previous one are in memory. CUDA's programmatic
dependent launch lets it begin when the previous kernel's blocks have ended, or when all of them have permitted it. On
an H100 that took 0.1 to 0.6 µs from each kernel of a CUDA graph.

Source: CUDA C++ Programming Guide, section "Programmatic Dependent Launch and Synchronization"; PTX ISA, section
griddepcontrol.
"""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmconv.targets import has_dependent_launches
from tvmconv.targets.device_code import function, included
from tvmconv.targets.devices import gpu_of

from ..signatures import itemsize

LAUNCH_PARAMETERS = "tirx.kernel_launch_params"
"""The attribute of a kernel with the names of the launch parameters besides its arguments."""

DEPENDENT, DYNAMIC_SHARED = "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"
"""Names in that list, as TVM spells them: of a dependent launch, and of the bytes of shared memory, the last one."""

MAX_SHARED_BYTES = 100 * 1024
"""The most bytes of shared memory of a block that lets the next kernel start before it ends.

On an H100 1x1 layers whose blocks have 200 KB took up to 17% longer where they let the next kernel start early,
probably since its blocks then went to multiprocessors in the order in which these became free, and neighbouring blocks
no longer shared what is in the L2 cache. Below this number networks at batch 1 take 4 to 9% less time than where no
kernel lets another start early.
"""

AFTER_OTHERS = function("after_others")
"""The CUDA function that waits for the previous kernel, and lets the next one start if there are few blocks."""


def with_dependent_launches(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module of kernels that wait for the previous kernel, if the target's GPU has dependent launches.

    Since each kernel waits, it ends after all earlier kernels, so that the next one needs to wait for it alone.

    Before: `def kernel(x, y): y[thread] = x[thread]`. After: `def kernel(x, y): after_others(132); y[thread] =
    x[thread]`, where 132 is the number of multiprocessors, or 0 for blocks with more than `MAX_SHARED_BYTES`.
    """
    if not has_dependent_launches(target):
        return mod

    def dependent(func: tirx.PrimFunc) -> tirx.PrimFunc:
        multiprocessors = gpu_of(target).multiprocessors if _shared_bytes(func) <= MAX_SHARED_BYTES else 0
        source = included("lowering/gpu/dependent_launches.cuh")
        wait = cuda_func_call(AFTER_OTHERS, tirx.const(multiprocessors, "uint32"), source_code=source)
        parameters = [str(name) for name in func.attrs[LAUNCH_PARAMETERS]]
        last = parameters.index(DYNAMIC_SHARED) if DYNAMIC_SHARED in parameters else len(parameters)
        parameters.insert(last, DEPENDENT)
        body = tirx.SeqStmt([tirx.Evaluate(wait), func.body])
        return func.with_body(body).with_attr(LAUNCH_PARAMETERS, parameters)

    return tvm.IRModule({name: dependent(func) for name, func in mod.functions.items()}, attrs=mod.attrs)


def _shared_bytes(func: tirx.PrimFunc) -> int:
    """Return the bytes of shared memory of a block; over `MAX_SHARED_BYTES` where the size is open."""
    sizes: list[int] = []

    def note(allocation: tirx.AllocBuffer) -> None:
        buffer = allocation.buffer
        if buffer.scope().startswith("shared"):
            is_known = all(isinstance(size, tirx.IntImm) for size in buffer.ty.shape)
            elements = prod(map(int, buffer.ty.shape)) if is_known else MAX_SHARED_BYTES + 1
            sizes.append(elements * itemsize(buffer.ty.dtype))

    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, note)])
    return sum(sizes)
