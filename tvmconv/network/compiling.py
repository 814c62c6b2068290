"""Compile a network's module to machine code, with passes of TVM and of tvmconv; name the operator where TVM fails."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import relax

from tvmconv import lowering
from tvmconv.problem.errors import UnsupportedModelError

from . import passes
from .graph.constants import static_shape
from .graph.faults import Refused, tvm_errors_as_refusals
from .graph.graph import blocks_of, free_variables, operator_name
from .passes.context import Context
from .passes.execution import network_pipeline

if TYPE_CHECKING:
    from tvm.runtime import Executable

UNNAMED = re.compile(r"(lv|gv)\d*")
"""The names of variables to which Relax's importers gave none."""

HINT = "static shapes, or other operators"

CALLING = ("relax.call_tir", "relax.call_tir_inplace")
"""The operators that call functions of the module."""

MAX_SECONDS = 8.0
"""The time after which no more operators are tried for being at fault; the last one takes a second or two beyond it."""


def compile_network(mod: tvm.IRModule, target: tvm.target.Target) -> Executable:
    """Compile the module; raise `UnsupportedModelError` with the operator at fault where TVM cannot."""
    try:
        return _compiled(mod, target)
    except Refused as refusal:
        operator, problem = operator_at_fault(mod, target, refusal.problem)
        raise UnsupportedModelError(
            f"TVM cannot compile {operator} for {target.kind.name}: {problem}. What would help: {HINT}"
        ) from refusal.__cause__


def _compiled(mod: tvm.IRModule, target: tvm.target.Target) -> Executable:
    """Compile the module; raise `Refused` where TVM cannot."""
    mod = passes.run(passes.COMPILING, mod, Context(target))
    with tvm_errors_as_refusals():
        return lowering.build(mod, target, network_pipeline(target))


def operator_at_fault(
    mod: tvm.IRModule, target: tvm.target.Target, problem: str, seconds: float = MAX_SECONDS
) -> tuple[str, str]:
    """Return an operator of "main" that TVM cannot compile alone either, in words, and the reason.

    If each operator compiles alone, or if none that fails was found in `MAX_SECONDS`, return the model with its own
    problem. Equal operators are tried once; operators of open sizes come first, and kernels, which TVM has only to
    translate, last.
    """
    end, tried = monotonic() + seconds, set[int]()
    found = [(block, var, value) for block in blocks_of(mod) for var, value in block.values.items()]
    for block, var, value in sorted(found, key=lambda each: _trial_order(mod, each[2])):
        if monotonic() > end:
            return (
                f"the model (the first {len(tried)} operators that were tried in {seconds:g} s compile alone)",
                problem,
            )
        if (alone := _module_of(mod, value)) is None or (key := tvm_ffi.structural_hash(alone)) in tried:
            continue
        tried.add(key)
        try:
            _compiled(alone, target)
        except Refused as refusal:
            # A variable without an importer's name belongs to the next node that has one.
            variables = list(block.values)
            behind = variables[variables.index(var) :]
            named = next((each for each in behind if not UNNAMED.fullmatch(each.name)), var)
            return f"{_called_name(value)} (node {named.name!r})", refusal.problem
    return "the model", problem


def _trial_order(mod: tvm.IRModule, value: relax.Expr) -> int:
    """Return a rank by which values are tried: the lower, the likelier it is that TVM cannot compile the value."""
    function = _function_of(mod, value)
    if function is not None and lowering.is_scheduled(function):
        return 2
    types = [value.ty, *(each.ty for each in free_variables(value))]
    is_open = any(isinstance(each, relax.TensorType) and static_shape(each) is None for each in types)
    return 0 if is_open else 1


def _function_of(mod: tvm.IRModule, value: relax.Expr) -> tvm.tirx.PrimFunc | None:
    """Return the function of the module that a value calls; None where it calls none."""
    return mod[value.args[0]] if operator_name(value) in CALLING else None


def _module_of(mod: tvm.IRModule, value: relax.Expr) -> tvm.IRModule | None:
    """Return a module that calls just this operator or function of the module; None for a value that calls neither."""
    name = operator_name(value)
    if name is None or name == "relax.call_dps_packed" or not isinstance(value.ty, relax.TensorType | relax.TupleType):
        return None
    builder = relax.BlockBuilder()
    with builder.function("main", free_variables(value)):
        with builder.dataflow():
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    main = builder.get()["main"]
    if relax.analysis.free_symbolic_vars(main):  # its sizes come from elsewhere
        return None
    function = _function_of(mod, value)
    alone = tvm.IRModule({} if function is None else {value.args[0]: function})
    alone["main"] = main
    return alone


def _called_name(call: relax.Call) -> str:
    """Return the name of the operator or the function that is called."""
    name = operator_name(call)
    if name in CALLING:
        return str(call.args[0].name_hint)
    return str(name).removeprefix("relax.")
