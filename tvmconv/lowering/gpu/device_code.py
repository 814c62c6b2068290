"""Calls of CUDA functions in `.cuh` files: a module gets the text of the files as the last step before CUDA source."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call

from tvmconv.targets.device_code import INCLUDE, expanded


def called(call: Call) -> str:
    """Return the name of the CUDA function that an expression calls; empty for another expression."""
    is_function = str(getattr(call.op, "name", "")) == "tirx.cuda.func_call"
    return str(call.args[0].value) if is_function else ""


def with_device_code(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of kernels in which one called function has the text of all files, and others have none.

    TVM writes the source of each function that is called, by its name, before the kernels.

    Before: `func_call("tvmconv::copy<16>", ..., "#include copies")` and `func_call("tvmconv::commit", ..., "#include
    copies")`. After: the same calls with the text of the file, and with "".
    """
    sources: dict[str, str] = {}

    def note(call: Call) -> None:
        if (name := called(call)) and INCLUDE.fullmatch(source := str(call.args[-1].value)):
            sources[name] = source

    def changed(call: Call) -> Any:
        if called(call) not in texts:
            return call
        name, *arguments, _ = call.args
        return cuda_func_call(str(name.value), *arguments, source_code=texts[str(name.value)], return_type=call.ty)

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, [(Call, note)])
    if not sources:
        return mod
    texts = dict.fromkeys(sources, "")
    texts[next(iter(texts))] = "\n" + expanded(sources.values())
    bodies = {var: tvm_ffi.structural_map(func.body, (Call, changed)) for var, func in mod.functions.items()}
    functions = {var: func.with_body(bodies[var]) for var, func in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs)
