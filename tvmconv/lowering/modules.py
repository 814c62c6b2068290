"""The door to TVM's compiler: from a module to an executable."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.runtime import Executable

from tvmconv.targets import backend_of
from tvmconv.targets.kernel_cache import use_fast_compiler

from .cpu.tiles import with_tiles
from .gpu.conditions import with_tests_before_loops
from .gpu.intrinsics import with_intrinsics
from .gpu.side_by_side import library_for_gpu
from .networks import build_network, library_for_cpu
from .open_sizes.divisions import with_multiplications, with_quotients_rounded_to_zero
from .rounding import with_rounding
from .signatures import with_channels_last


def build(mod: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None) -> Executable:
    """Compile a module of kernels, or a Relax module, for a target, by TVM's default pipeline unless one is given."""
    use_fast_compiler()
    on_gpu = backend_of(target).on_gpu
    mod = mod.clone()
    kernels = {name: func for name, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
    if on_gpu:
        for each in (with_intrinsics, with_tests_before_loops, with_multiplications):
            kernels = {name: each(func) for name, func in kernels.items()}
    else:
        kernels = {name: with_tiles(with_quotients_rounded_to_zero(func)) for name, func in kernels.items()}
    kernels = {name: with_channels_last(with_rounding(func, target)) for name, func in kernels.items()}
    mod.update(tvm.IRModule(kernels))
    if pipeline is None and len(kernels) < len(mod.functions):
        # By itself TVM uses the target's own pipeline, which fuses operators, for a GPU only.
        pipeline = tvm.relax.get_default_pipeline(target)
    current = tvm.transform.PassContext.current()
    # What schedules mark as asynchronous becomes cp.async; without this they would be ordinary copies.
    config = {**current.config, "tirx.use_async_copy": backend_of(target).asynchronous_copies}
    with tvm.transform.PassContext(current.opt_level, config=config):
        if pipeline is not None:
            return build_network(mod, target, pipeline)
        if on_gpu:
            return Executable(library_for_gpu(mod, target, keeps=False))
        return Executable(library_for_cpu(mod, target, checked={var.name_hint for var in mod.functions}))
