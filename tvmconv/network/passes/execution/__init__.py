"""The last passes: from a module of scheduled functions to calls of TVM's virtual machine, with all memory."""

from __future__ import annotations

from contextlib import suppress

import tvm
from tvm.error import InternalError
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.relax.backend.cuda import pipeline as cuda

from tvmconv.targets import backend_of

from ...between.empty_tensors import make_empty_constants
from ...graph.graph import has_branches
from .cuda_graphs import with_cuda_graphs
from .memory_plan import plan_memory

RESHAPES = "RewriteDataflowReshape"
"""The name of TVM's pass by which functions that only reshape become views."""


def network_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """Return TVM's own pipeline for a target with `plan_memory` and, for a GPU, `use_cuda_graphs` in place of TVM's.

    TVM's own planning is left out of a network with branches: it would give a branch memory that only the other one
    allocates.
    """
    on_gpu = backend_of(target).on_gpu
    source = cuda if on_gpu else cpu
    passes = [
        *source.library_dispatch_passes(target),
        *source.legalize_passes(target),
        tvm.transform.module_pass(lambda mod, _: make_empty_constants(mod), opt_level=0, name="make_empty_constants"),
        *source.dataflow_lower_passes(target),
        tvm.transform.module_pass(lambda mod, _: plan_memory(mod, on_gpu), opt_level=0, name="plan_memory"),
        *with_cuda_graphs(source.finalize_passes(target)),
    ]

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        left_out = ("StaticPlanBlockMemory",) if has_branches(mod) else ()
        kept = [each for each in passes if each.info.name not in left_out]
        at = next(index for index, each in enumerate(kept) if each.info.name == RESHAPES)
        with target:
            mod = tvm.transform.Sequential(kept[:at])(mod)
            with suppress(InternalError):  # of sizes that TVM cannot divide by each other; reshapes are copies then
                mod = kept[at](mod)
            return tvm.transform.Sequential(kept[at + 1 :])(mod)

    return tvm.transform.module_pass(run, opt_level=0, name="network_pipeline")
