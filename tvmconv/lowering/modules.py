"""The door to TVM's compiler: from a module to an executable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm

from ..kernel_cache import use_fast_compiler

if TYPE_CHECKING:
    from tvm.runtime import Executable


def build(mod: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None) -> Executable:
    """Compiles a module of kernels, or a Relax module, for a target; by TVM's default pipeline for it unless told."""
    use_fast_compiler()
    current = tvm.transform.PassContext.current()
    # What schedules mark as asynchronous becomes cp.async; without this they would be ordinary copies.
    config = {**current.config, "tirx.use_async_copy": target.kind.name == "cuda"}
    # By itself TVM uses the target's own pipeline, which fuses operators, for a GPU only.
    with tvm.transform.PassContext(current.opt_level, config=config):
        return tvm.compile(mod, target, relax_pipeline=pipeline or tvm.relax.get_default_pipeline(target))
