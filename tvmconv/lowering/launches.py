"""Building of a bound skeleton to machine code: the rest of lowering, and one translation unit for each launch."""

from __future__ import annotations

import json

import tvm
from tvm import tirx
from tvm.runtime import Executable
from tvm.tirx.build import codegen_build, split_host_device_mods

from tvmconv.targets import backend_of, cross_triple, cuda, cuda_arch, kernel_cache, llvm

from .gpu.side_by_side import finalized, import_kernels

AS_WRITTEN = "-disable-machine-licm:bool=true"
"""LLVM's option against moving constants out of loops: it would read thousands of weights ahead, and put them, a whole
vector each, into memory until they are used. Machine code that is loaded at run time was twice as slow for it."""


def build_launches(func: tirx.PrimFunc, target: tvm.target.Target, name: str) -> Executable:
    """Return the module with a function that `folding.bind` made, named.

    Each of its launches is a separate CUDA module, since compilers take longer over one large function than over two
    halves, and can compile them side by side.
    """
    kernel_cache.use_fast_compiler()
    func = func.with_attrs({"global_symbol": name, "tirx.is_entry_func": True})
    last = (
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.BF16StorageLegalize(),
    )
    host, devices = split_host_device_mods(tvm.ir.transform.Sequential(last)(tvm.IRModule({name: func})))
    _, finalize_host, _ = tirx.get_default_tir_pipeline(target)
    lowered = finalize_host()(host)
    if not backend_of(target).on_gpu:
        generated_for = _as_written(target)
        # In one block: where another thread generates code between the two, TVM leaves the options set behind both.
        with llvm.options_for(generated_for):
            module = codegen_build(lowered, generated_for)
            if cross_triple(str(target)) is None:
                module[name]  # makes the machine code, which would else be made in the first call
    else:
        module = codegen_build(lowered, target.host)
    launches = [
        (finalized(tvm.IRModule({launch: kernel}), target), device)
        for device, kernels in devices.items()
        for launch, kernel in kernels.functions.items()
    ]
    import_kernels(module, launches)
    return Executable(module)


def machine_code(executable: Executable, target: tvm.target.Target) -> list[bytes]:
    """Return the machine code of a module's launches, compiled in parallel and cached; none for a CPU."""
    sources = cuda.sources(executable.mod)
    return kernel_cache.compile_all(sources, cuda_arch(target)) if sources else []


def _as_written(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target with `AS_WRITTEN` among its options."""
    config = json.loads(str(target))
    return tvm.target.Target({**config, "cl-opt": [*config.get("cl-opt", ()), AS_WRITTEN]})
