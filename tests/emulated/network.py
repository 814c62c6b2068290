"""Networks for a GPU without one: the kernels between convolutions as the emulator runs them, TVM's on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tvmconv.compute.substitution import evaluated
from tvmconv.lowering import build, is_scheduled
from tvmconv.network.between.gpu.fusion import lower_and_fuse_for_gpu
from tvmconv.network.between.gpu.spreading import is_view, spread_over_gpu
from tvmconv.network.between.stages import stages_of
from tvmconv.network.passes.arithmetic import sum_in_float32
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets import resolve_target

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})


class Run(NamedTuple):
    """The results of a network, and the kernels that computed them."""

    outputs: list[np.ndarray]
    kernels: list[str]
    """The names of the functions that are one kernel each, in their order."""
    left: list[str]
    """The names of those that are left to TVM, but for views."""
    launches: list[Emulator]


def lowered(mod: tvm.IRModule, target: tvm.target.Target = SM_90) -> tvm.IRModule:
    """Return a module as networks for a GPU have it, with its functions scheduled."""
    return spread_over_gpu(lower_and_fuse_for_gpu(sum_in_float32(mod, target), target), target)


def sizes_of(params: Sequence[Any], arrays: Sequence[np.ndarray]) -> dict[tvm.ir.Var, int]:
    """Return the values of open sizes in the shapes of parameters."""
    shapes = [(param.ty.shape, array.shape) for param, array in zip(params, arrays, strict=True)]
    pairs = [pair for shape, actual in shapes for pair in zip(shape, actual, strict=True)]
    return {size: actual for size, actual in pairs if isinstance(size, tvm.ir.Var)}


def run(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> Run:
    """Return what a module, which is lowered, computes of its inputs; their shapes are the values of its open sizes."""
    main = mod["main"]
    values: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))
    sizes = sizes_of(main.params, inputs)
    kernels, left, launches = [], [], []

    def value(expr: Any) -> Any:
        if isinstance(expr, tvm.ir.GenericConst):
            return expr.value.numpy()
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        return values[expr]

    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        call = binding.value
        if not isinstance(call, relax.Call):
            values[binding.var] = value(call)
            continue
        func, operands = mod[call.args[0]], [value(each) for each in call.args[1].fields]
        shape, dtype = [evaluated(size, sizes) for size in call.ty.shape], str(call.ty.dtype)
        numpy_type = STORAGE_TYPES[dtype].numpy if dtype in STORAGE_TYPES else dtype
        output = np.full(shape, 77, numpy_type)  # bytes have no -77
        name = str(call.args[0].name_hint)
        if is_scheduled(func):
            everything = [*operands, output]
            named = {var.name: size for var, size in sizes_of(func.params, everything).items()}
            (kernel,) = device_functions(func.with_attr("global_symbol", name), SM_90, named)
            arrays = {param.name: array for param, array in zip(func.params, everything, strict=True)}
            launches.append(Emulator(kernel, arrays))
            kernels.append(name)
        else:
            tensors = [tvm.runtime.tensor(array) for array in (*operands, output)]
            build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), CPU)["main"](*tensors)
            output = tensors[-1].numpy()
            left += [] if is_view(stages_of(func) or []) else [name]
        values[binding.var] = output
    result = value(main.body.body)
    return Run(result if isinstance(result, list) else [result], kernels, left, launches)
