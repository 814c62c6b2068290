"""The door to TVM's compiler: from a module of kernels, or a whole network, to an executable.

A network is bytecode for TVM's virtual machine, and a library with the functions that it calls.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.runtime import Executable

from tvmconv.targets import backend_of
from tvmconv.targets.kernel_cache import use_fast_compiler

from .cpu.library import functions_of_inputs, library_for_cpu, with_widest_vectors
from .cpu.tiles import with_tiles
from .gpu.conditions import with_tests_before_loops
from .gpu.intrinsics import with_intrinsics
from .gpu.side_by_side import library_for_gpu
from .open_sizes.divisions import with_multiplications, with_quotients_rounded_to_zero
from .rounding import with_rounding
from .signatures import with_alignment, with_channels_last


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
            return _build_network(mod, target, pipeline)
        if on_gpu:
            return Executable(library_for_gpu(mod, target, keeps=False))
        return Executable(library_for_cpu(mod, target, checked={var.name_hint for var in mod.functions}))


def _build_network(mod: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass) -> Executable:
    """Compile a Relax module by a pipeline of Relax, as `tvm.compile` does.

    On a CPU, functions that are not called with the network's inputs do not check their arguments: without that, the
    machine code of a network is made in half of the time. Where a network is called without tvmconv, the virtual
    machine checks its inputs, but not their strides and device, which the functions check that are called with them.
    """
    with target:
        mod = pipeline(mod)
    called_with_inputs = functions_of_inputs(mod)
    builder = relax.ExecBuilder()
    functions = vm_build._filter_tir(vm_build._vmcodegen(builder, mod))
    if functions is None:
        library = None
    elif backend_of(target).on_gpu:
        library = library_for_gpu(functions, target, keeps=True)
    else:
        functions = _with_alignment_of_inputs(functions, target, called_with_inputs)
        library = library_for_cpu(functions, with_widest_vectors(target), called_with_inputs)
    attributes = dict(mod.attrs or {})
    others, constants = attributes.get("external_mods", []), attributes.get("const_name_to_constant", {})
    return vm_build.VMExecutable(relax._ffi_api.VMLink(builder, target, library, others, dict(constants)))


def _with_alignment_of_inputs(mod: tvm.IRModule, target: tvm.target.Target, called: set[str]) -> tvm.IRModule:
    """Return the module with parameters of the functions `called` aligned no more than the arrays of users are."""
    mod = mod.clone()
    for var, func in mod.functions.items():
        if var.name_hint in called:
            mod[var] = with_alignment(func, target)
    return mod
