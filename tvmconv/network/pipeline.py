"""The passes from a network's operators to the code of TVM's virtual machine."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.relax.backend.cuda import pipeline as cuda

from ..targets import backend_of
from .cuda_graphs import with_cuda_graphs
from .graph import has_branches
from .memory_plan import plan_memory


def source_of(target: tvm.target.Target) -> Any:
    """Return TVM's module with the passes for a target."""
    return cuda if backend_of(target).on_gpu else cpu


def network_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """Return TVM's own pipeline for a target with `plan_memory` and, for a GPU, `use_cuda_graphs`.

    TVM's own planning is left out of a network with branches: it would give a branch memory that only the other one
    allocates.
    """
    source, on_gpu = source_of(target), backend_of(target).on_gpu
    passes = [
        *source.library_dispatch_passes(target),
        *source.legalize_passes(target),
        *source.dataflow_lower_passes(target),
        tvm.transform.module_pass(lambda mod, _: plan_memory(mod, on_gpu), opt_level=0, name="plan_memory"),
        *with_cuda_graphs(source.finalize_passes(target)),
    ]

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        left_out = ("StaticPlanBlockMemory",) if has_branches(mod) else ()
        with target:
            return tvm.transform.Sequential([each for each in passes if each.info.name not in left_out])(mod)

    return tvm.transform.module_pass(run, opt_level=0, name="network_pipeline")
