"""Functions of a module for the sizes that they are called with."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import relax, tirx

from .constants import sizes_of
from .graph import blocks_of, operator_name


def with_bound_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with numbers for the open sizes of functions that all calls give the same number.

    TVM fuses functions only if the sizes of what one writes and the other reads are written alike.

    Before: `def max(x: T.Buffer((n, 8)), y: T.Buffer((n,)))`, called with tensors of (1, 8). After: `x: (1, 8)`.
    """
    calls: dict[tvm.ir.GlobalVar, list[relax.Call]] = {}
    for block in blocks_of(mod):
        for value in block.values.values():
            if operator_name(value) == "relax.call_tir":
                calls.setdefault(value.args[0], []).append(value)
    bound = mod.clone()
    for function, of_function in calls.items():
        code = mod[function]
        numbers: dict[tirx.Var, set[int | None]] = {}
        for call in of_function:
            for variable, size in _sizes(code, call):
                numbers.setdefault(variable, set()).add(size)
        known = {
            variable: next(iter(each)) for variable, each in numbers.items() if len(each) == 1 and None not in each
        }
        if known:
            bound[function] = _bound(code, known)
    return bound


def _sizes(code: tirx.PrimFunc, call: relax.Call) -> Iterator[tuple[tirx.Var, int | None]]:
    """Yield the variables that are sizes of a function's tensors, each with its number in a call, None if open."""
    results = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    for parameter, ty in zip(code.params, [*(each.ty for each in call.args[1]), *results], strict=True):
        if isinstance(ty, relax.TensorType):
            sizes = sizes_of(ty) or [None] * len(parameter.ty.shape)
            for variable, size in zip(parameter.ty.shape, sizes, strict=True):
                if isinstance(variable, tvm.ir.Var):
                    yield variable, size if isinstance(size, int) else None


def _bound(code: tirx.PrimFunc, numbers: dict[tirx.Var, int | None]) -> tirx.PrimFunc:
    """Return a function with numbers for some of its sizes, but for those that are parameters as well."""

    def number(variable: tvm.ir.Var) -> tirx.Expr:
        return tirx.const(numbers[variable], variable.ty.dtype) if variable in numbers else variable

    return code if any(each in numbers for each in code.params) else tvm_ffi.structural_map(code, (tvm.ir.Var, number))
