"""Compile a network's module to machine code, with passes of TVM and of tvmconv; name the operator where TVM fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import relax

from .. import lowering
from ..errors import UnsupportedModelError
from ..targets import backend_of
from .concatenations import flatten_concatenations
from .faults import Refused, tvm_at_work
from .gpu.fusion import lower_and_fuse_for_gpu
from .gpu.spreading import spread_over_gpu
from .graph import blocks_of, free_variables, operator_name
from .parts import permute_parts
from .pipeline import network_pipeline
from .recurrence import lower_recurrences
from .separation import separate_convolutions
from .spreading import lower_and_fuse, spread_over_threads

if TYPE_CHECKING:
    from tvm.runtime import Executable

UNNAMED = re.compile(r"(lv|gv)\d*")
"""The names of variables to which Relax's importers gave none."""

HINT = "static shapes, or other operators"


def compile_network(mod: tvm.IRModule, target: tvm.target.Target) -> Executable:
    """Compile the module; raise `UnsupportedModelError` with the operator at fault where TVM cannot."""
    if backend_of(target).on_gpu:
        mod = flatten_concatenations(mod)
    try:
        return _compiled(mod, target)
    except Refused as refusal:
        found = operator_at_fault(mod, target)
        place, problem = found or ("it", refusal.problem)
        raise UnsupportedModelError(
            f"TVM cannot compile {place} for {target.kind.name}: {problem}. What would help: {HINT}"
        ) from refusal.__cause__


def _compiled(mod: tvm.IRModule, target: tvm.target.Target) -> Executable:
    """Compile the module; raise `Refused` where TVM cannot.

    An error that a pass of tvmconv raises between TVM's passes is a bug and stays as it is.
    """
    mod, on_gpu = lower_recurrences(mod, target), backend_of(target).on_gpu
    if on_gpu:
        mod = separate_convolutions(permute_parts(mod))
    with tvm_at_work():
        mod = lower_and_fuse_for_gpu(mod, target) if on_gpu else lower_and_fuse(mod, target)
    mod = spread_over_gpu(mod, target) if on_gpu else spread_over_threads(mod, target)
    with tvm_at_work():
        return lowering.build(mod, target, network_pipeline(target))


def operator_at_fault(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[str, str] | None:
    """Return the first operator of "main" that TVM cannot compile alone either, in words, and the reason.

    None where each of them compiles alone. Equal ones are tried once.
    """
    tried = set()
    for block in blocks_of(mod):
        variables = list(block.values)
        for place, (var, value) in enumerate(block.values.items()):
            if (alone := _alone(mod, value)) is None or (key := tvm_ffi.structural_hash(alone)) in tried:
                continue
            tried.add(key)
            try:
                _compiled(alone, target)
            except Refused as refusal:
                # What importers give no name belongs to the next node that has one.
                named = next((each for each in variables[place:] if not UNNAMED.fullmatch(each.name)), var)
                return f"{_called(value)} (node {named.name!r})", refusal.problem
    return None


def _alone(mod: tvm.IRModule, value: relax.Expr) -> tvm.IRModule | None:
    """Return a module that calls just this operator or function of the module; None for a value that calls neither."""
    name = operator_name(value)
    if name is None or name == "relax.call_dps_packed":
        return None
    builder = relax.BlockBuilder()
    with builder.function("main", free_variables(value)):
        with builder.dataflow():
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    main = builder.get()["main"]
    if relax.analysis.free_symbolic_vars(main):  # its sizes come from elsewhere
        return None
    alone = tvm.IRModule({var: func for var, func in mod.functions.items() if isinstance(func, tvm.tirx.PrimFunc)})
    alone["main"] = main
    return relax.transform.DeadCodeElimination()(alone)


def _called(call: relax.Call) -> str:
    """Return the name of the operator or the function that is called."""
    name = operator_name(call)
    if name in ("relax.call_tir", "relax.call_tir_inplace"):
        return str(call.args[0].name_hint)
    return str(name).removeprefix("relax.")
