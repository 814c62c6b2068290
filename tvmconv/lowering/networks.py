"""Building of a whole network: bytecode for TVM's virtual machine, and a library with the functions that it calls."""

from __future__ import annotations

import json

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.runtime import Executable, Module
from tvm.tirx.build import codegen_build

from tvmconv.targets import backend_of, llvm
from tvmconv.targets.devices import MOST_LANES, cpu_of

from .cpu.arguments import functions_of_inputs, without_checks
from .cpu.remainders import with_hidden_masks
from .gpu.side_by_side import library_for_gpu
from .signatures import with_alignment

NOT_HALVES = "-prefer-256-bit"
"""LLVM's feature, taken away, of CPUs for which it makes vectors of 256 bits where there are registers of 512."""


def build_network(mod: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass) -> Executable:
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
        library = library_for_cpu(functions, _with_widest_vectors(target), called_with_inputs)
    attributes = dict(mod.attrs or {})
    others, constants = attributes.get("external_mods", []), attributes.get("const_name_to_constant", {})
    return vm_build.VMExecutable(relax._ffi_api.VMLink(builder, target, library, others, dict(constants)))


def library_for_cpu(mod: tvm.IRModule, target: tvm.target.Target, checked: set[str]) -> Module:
    """Return a module of functions for a CPU, of which those with the names `checked` check their arguments."""
    pipeline, finalize, _ = tirx.get_default_tir_pipeline(target)
    mod = pipeline(tirx.transform.BindTarget(target.with_host(target))(mod))
    for var, func in mod.functions.items():
        mod[var] = with_hidden_masks(func if var.name_hint in checked else without_checks(func))
    mod = finalize()(mod)
    with llvm.options_for(target):
        return codegen_build(mod, target)


def _with_alignment_of_inputs(mod: tvm.IRModule, target: tvm.target.Target, called: set[str]) -> tvm.IRModule:
    """Return the module whose functions with the names `called` read arrays of users, aligned to just an element."""
    mod = mod.clone()
    for var, func in mod.functions.items():
        if var.name_hint in called:
            mod[var] = with_alignment(func, target)
    return mod


def _with_widest_vectors(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target with vectors as long as registers in the loops that LLVM makes vectors of.

    By itself it prefers half of an AVX-512 register, which the first of such CPUs were the slower for.
    """
    if cpu_of(target).lanes < MOST_LANES:
        return target
    config = json.loads(str(target))
    return tvm.target.Target({**config, "mattr": [*config.get("mattr", ()), NOT_HALVES]})
