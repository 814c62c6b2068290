"""Building of a module for a GPU: its functions are lowered and compiled side by side, each a CUDA module of its own.

A compiler takes one thread for a module. Where its source holds one function, it is known to `kernel_cache` by that
alone, whatever else is in a network.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.runtime import Executable, Module
from tvm.tirx.build import codegen_build, split_host_device_mods

from ..threads import usable_cpus

Kernels = tuple[tvm.IRModule, tvm.target.Target]
"""Functions of a GPU that belong together, and their target."""


def build_side_by_side(
    mod: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None
) -> Executable:
    """Compile a module of kernels, or by a pipeline of Relax one with functions of it, as `tvm.compile` does."""
    if pipeline is None:
        return Executable(_library(mod, target))
    with target:
        mod = pipeline(mod)
    builder = relax.ExecBuilder()
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, mod))
    library = None if kernels is None else _library(kernels, target)
    attributes = dict(mod.attrs or {})
    others, constants = attributes.get("external_mods", []), attributes.get("const_name_to_constant", {})
    return vm_build.VMExecutable(relax._ffi_api.VMLink(builder, target, library, others, dict(constants)))


def import_kernels(module: Module, kernels: Iterable[Kernels]) -> None:
    """Compile kernels, each a CUDA module, and let a module of the host call them."""
    with ThreadPoolExecutor(usable_cpus()) as pool:
        for each in pool.map(lambda one: codegen_build(*one), kernels):
            module.import_module(each)


def _library(mod: tvm.IRModule, target: tvm.target.Target) -> Module:
    """Return the module of the host that launches the functions of a module, with CUDA modules that it imports."""
    context = tvm.transform.PassContext.current()

    def lowered(function: tuple[tvm.ir.GlobalVar, tirx.PrimFunc]) -> tuple[tvm.IRModule, list[Kernels]]:
        pipeline, finalize_host, finalize_kernels = tirx.get_default_tir_pipeline(target)
        with context:  # each thread has its own
            alone = tirx.transform.BindTarget(target)(tvm.IRModule(dict([function])))
            host, kernels = split_host_device_mods(pipeline(alone))
            return finalize_host()(host), [(finalize_kernels()(each), place) for place, each in kernels.items()]

    with ThreadPoolExecutor(usable_cpus()) as pool:
        parts = list(pool.map(lowered, mod.functions.items()))
    with context:
        hosts = {name: func for host, _ in parts for name, func in host.functions.items()}
        module = codegen_build(tvm.IRModule(hosts), target.host)
    import_kernels(module, [each for _, kernels in parts for each in kernels])
    return module
