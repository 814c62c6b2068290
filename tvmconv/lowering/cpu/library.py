"""Building of a module for a CPU, without argument checks, which LLVM is slow at, and remainders that it gets wrong."""

from __future__ import annotations

import json
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprVisitor, visitor
from tvm.runtime import Module
from tvm.tirx.build import codegen_build

from tvmconv.targets import llvm
from tvmconv.targets.devices import MAX_LANES, cpu_of

CALLED_PACKED = 1
"""The calling convention of a function with TVM's checks in it, `CallingConv::kCPackedFunc`."""

OWN_CODE = "compute_scope"
"""The key of TVM's attribute around a function's own statements, which follow the checks of its arguments."""

NOT_HALVES = "-prefer-256-bit"
"""The option that takes away the LLVM feature of preferring vectors of 256 bits on CPUs with registers of 512 bits."""


def library_for_cpu(mod: tvm.IRModule, target: tvm.target.Target, checked: set[str]) -> Module:
    """Return a module of functions for a CPU, of which those with the names `checked` check their arguments."""
    pipeline, finalize, _ = tirx.get_default_tir_pipeline(target)
    mod = pipeline(tirx.transform.BindTarget(target.with_host(target))(mod))
    for var, func in mod.functions.items():
        mod[var] = _with_hidden_masks(func if var.name_hint in checked else _without_checks(func))
    mod = finalize()(mod)
    with llvm.options_for(target):
        return codegen_build(mod, target)


def with_widest_vectors(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target with vectors as long as registers in the loops that LLVM vectorizes.

    Without the option LLVM prefers half of an AVX-512 register, since the first such CPUs ran slower with whole ones.
    """
    if cpu_of(target).lanes < MAX_LANES:
        return target
    config = json.loads(str(target))
    return tvm.target.Target({**config, "mattr": [*config.get("mattr", ()), NOT_HALVES]})


def functions_of_inputs(mod: tvm.IRModule) -> set[str]:
    """Return the names of the functions that a network calls with its inputs, as they are or as views of them.

    The network is lowered, in the form from which its bytecode is made. It calls all other functions with constants and
    with memory that it has allocated for them.
    """
    names: set[str] = set()

    @visitor
    class Collect(PyExprVisitor):  # type: ignore[misc]
        def __init__(self, inputs: list[relax.Var]) -> None:
            super().__init__()
            self.inputs = set(inputs)

        def visit_var_binding_(self, binding: relax.VarBinding) -> None:
            super().visit_var_binding_(binding)
            self.note(binding)

        def visit_match_cast_(self, binding: relax.MatchCast) -> None:
            super().visit_match_cast_(binding)
            self.note(binding)

        def note(self, binding: relax.Binding) -> None:
            value = binding.value
            if self.inputs.isdisjoint(relax.analysis.free_vars(value)):
                return
            if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                names.add(value.op.name_hint)
            else:
                self.inputs.add(binding.var)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            count = int(func.attrs.get("num_input", len(func.params))) if func.attrs else len(func.params)
            Collect(list(func.params)[:count]).visit_expr(func)
    return names


def _without_checks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with TVM's packed interface without the checks of its arguments; assertions in its code stay.

    Before: `assert num_args == 2; ...; assert x.ndim == 4; with T.attr({"compute_scope": ...}): assert granted; A`.
    After: `...; with T.attr({"compute_scope": ...}): assert granted; A`.
    """
    if int(func.attrs.get("calling_conv", 0)) != CALLED_PACKED:
        return func
    return func.with_body(_without_asserts(func.body))


def _without_asserts(step: Any) -> Any:
    if isinstance(step, tirx.AssertStmt):
        return tirx.Evaluate(0)
    if isinstance(step, tirx.SeqStmt):
        return tirx.stmt_seq(*map(_without_asserts, step.seq))
    if isinstance(step, tirx.IfThenElse):  # a check of strides: an array without strides is contiguous
        return tirx.IfThenElse(step.condition, _without_asserts(step.then_case), None)
    if isinstance(step, tirx.AttrStmt) and step.attr_key != OWN_CODE:
        return tirx.AttrStmt(step.node, step.attr_key, step.value, _without_asserts(step.body))
    return step


def _with_hidden_masks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function for a CPU whose remainders by powers of two are hidden from LLVM.

    LLVM makes a mask of such a remainder. Elements at `x[i % 16]` are consecutive only until the remainder wraps
    around; a vector loop needs a check for that, which LLVM 22 forgets in many loops: it reads on past the end of a
    row. A hidden mask is a number whose value LLVM does not know.

    Before: `x[i % 16 * 4 + j]`. After: `x[(i & hidden(15)) * 4 + j]`.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloorMod, _masked)))


def _masked(remainder: tirx.FloorMod) -> tvm.ir.Expr:
    """Return a remainder by a power of two as a mask behind `llvm.arithmetic.fence`, which becomes no instruction."""
    divisor = remainder.b
    if not isinstance(divisor, tirx.IntImm) or int(divisor) < 2 or int(divisor) & (int(divisor) - 1):
        return remainder
    mask = tirx.const(float(int(divisor) - 1), "float64")
    fenced = tirx.call_llvm_pure_intrin("float64", "llvm.arithmetic.fence", mask)
    return tirx.bitwise_and(remainder.a, fenced.astype(remainder.a.ty.dtype))
