"""Building of a module for a GPU: its functions are lowered and compiled in parallel, each as a separate CUDA module.

A compiler takes one thread for a module. As the source of a module holds one function, `kernel_cache` finds its machine
code again whatever else is in a network.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.runtime import Module
from tvm.tirx.build import codegen_build, split_host_device_mods

from tvmconv.targets import has_gpu, llvm
from tvmconv.targets.threads import usable_cpus

from ..kept import KEEP, Kernels, code_of, keep_code, name_of
from .dependent_launches import with_dependent_launches
from .device_code import with_device_code
from .roles import with_roles_apart

WORDS = ("int32", "uint32", "float32")
"""The types of 32 bits, between which the bits of a constant are reinterpreted."""


def import_kernels(module: Module, kernels: Iterable[Kernels]) -> None:
    """Compile kernels, each a CUDA module, and let a module of the host call them."""
    with ThreadPoolExecutor(usable_cpus()) as pool:
        for each in pool.map(lambda one: codegen_build(*one), kernels):
            module.import_module(each)


def finalized(kernels: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module of lowered kernels ready for TVM to write CUDA source: dependent launches, device code."""
    return with_device_code(with_dependent_launches(kernels, target))


def library_for_gpu(mod: tvm.IRModule, target: tvm.target.Target, keeps: bool) -> Module:
    """Return the host module of a module's first function, which imports the host modules of the others.

    A host module imports the CUDA modules whose kernels it launches. With `keeps` code is kept on disk, and code that
    was kept is not compiled again; single kernels are not kept, as a tuner tries thousands of them.

    On a machine with a GPU the machine code is made here, in parallel; else the first call makes it, one by one.
    """
    context, runs_here = tvm.transform.PassContext.current(), has_gpu()

    def compiled(function: tuple[tvm.ir.GlobalVar, tirx.PrimFunc]) -> Module:
        var, func = function
        pipeline, finalize_host, finalize_kernels = tirx.get_default_tir_pipeline(target)
        with context:  # each thread has its own
            name = name_of(func, target) if keeps else None
            if (known := code_of(func, name)) is not None:
                return known
            alone = tirx.transform.BindTarget(target)(tvm.IRModule({var: func.without_attr(KEEP)}))
            host, kernels = split_host_device_mods(pipeline(alone))
            module = codegen_build(finalize_host()(host), target.host)
            final = [
                (finalize_kernels()(with_roles_apart(each)), units_target) for units_target, each in kernels.items()
            ]
            units = [(finalized(_with_constant_bits(each), target), units_target) for each, units_target in final]
            made = [codegen_build(*unit) for unit in units]
        for each in made:
            module.import_module(each)
        if name is not None:
            keep_code(name, module, zip(units, made, strict=True))
        return module

    def ready(function: tuple[tvm.ir.GlobalVar, tirx.PrimFunc]) -> Module:
        module = compiled(function)
        if runs_here:
            llvm.function_of(module, function[0].name_hint)
        return module

    with ThreadPoolExecutor(usable_cpus()) as pool:
        first, *others = pool.map(ready, mod.functions.items())
    for each in others:
        first.import_module(each)
    return first


def _with_constant_bits(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of kernels in which a constant's bits, read as another type, are a constant of that type.

    TVM's code for CUDA takes the address of the value, and a constant has none. There are such constants where elements
    past the last output channel of a tile go through an activation.

    Before: `T.reinterpret("int32", T.float32(12582912.0))`. After: `1262485504`.
    """

    def constant(call: tvm.ir.Call) -> tirx.PrimExpr:
        if not str(getattr(call.op, "name", "")).endswith("reinterpret"):
            return call
        (value,), dtype = call.args, str(call.ty.dtype)
        dtype_of_value = str(value.ty.dtype)
        if not isinstance(value, tirx.IntImm | tirx.FloatImm) or dtype_of_value not in WORDS or dtype not in WORDS:
            return call
        return tirx.const(np.array(value.value, dtype_of_value).view(dtype).item(), dtype)

    def folded(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, constant)))

    return tvm.IRModule({name: folded(func) for name, func in mod.functions.items()}, attrs=mod.attrs)
