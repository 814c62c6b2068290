"""Exponentials and the like in operators that TVM computes on a CPU, in a form that LLVM vectorizes.

They are operators of tvmconv until TVM lowers intrinsic functions, which is late: with formulas, each variable in one
doubles the time of TVM's passes.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import register_op_attr

from tvmconv.compute.approximations import BEFORE_TVM, PURE
from tvmconv.compute.functions import Float32


def with_vector_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with formulas instead of functions of the C library, which take a number at a time.

    A store with such a function of another one stays as it is: formulas inside each other multiply the time of
    lowering.

    Before: `y[i] = exp(x[i] - m)`. After: `y[i] = tvmconv.vector_exp(x[i] - m)`, which is lowered to the square of
    `Float32.exp` of half of the number, a polynomial.
    """

    def of_store(store: tirx.BufferStore) -> tirx.Stmt:
        if any(functions_in(each.args[0]) for each in functions_in(store.value)):
            return store
        value = tvm_ffi.structural_map(store.value, (tvm.ir.Call, _as_operator))
        return tirx.BufferStore(store.buffer, value, store.indices)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, of_store)))


def functions_in(expression: tirx.PrimExpr) -> list[tvm.ir.Call]:
    """Return the calls in an expression for which there are formulas."""
    found: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(expression, [(tvm.ir.Call, found.append)])
    return [call for call in found if _function(call) is not None]


def _function(call: tvm.ir.Call) -> str | None:
    """Return the name of the function in `FORMULAS` that is called; None for any other call."""
    name = call.op.name.rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""
    return name if name in FORMULAS and str(call.ty.dtype) == "float32" else None


def _as_operator(call: tvm.ir.Call) -> tirx.PrimExpr:
    name = _function(call)
    return call if name is None else tirx.call_intrin("float32", PREFIX + name, *call.args)


def _exp(arithmetic: Float32, y: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the square of exp(y / 2): `Float32.exp` alone is infinite close to the largest number."""
    root = arithmetic.bound(arithmetic.exp(y * 0.5))
    return root * root


def _sigmoid(arithmetic: Float32, y: tirx.PrimExpr) -> tirx.PrimExpr:
    return 1.0 / (arithmetic.exp(-y) + 1.0)


PREFIX = "tvmconv.vector_"
"""The beginning of the names of the operators."""

FORMULAS: dict[str, Callable[[Float32, tirx.PrimExpr], tirx.PrimExpr]] = {
    "exp": _exp,
    "erf": Float32.erf,
    "sigmoid": _sigmoid,
    "tanh": Float32.tanh,
}
"""The formula of each function of float32 numbers, by the name of TVM's operator."""


def _register(name: str) -> None:
    """Register the operator of a function, which is lowered to the function's formula."""

    def lowered(call: tirx.Call) -> tirx.PrimExpr:
        (y,) = call.args
        if str(call.ty.dtype) != "float32":  # a vector that a schedule has made, in parts
            return getattr(tirx, name)(y)
        arithmetic = Float32()
        return arithmetic.with_variables(FORMULAS[name](arithmetic, arithmetic.bound(y)))

    register_op_attr(PREFIX + name, "TCallEffectKind", PURE)
    register_op_attr(PREFIX + name, "TVectorizable", True)
    register_op_attr(PREFIX + name, "TScriptPrinterName", PREFIX + name)
    tirx.register_intrin_lowering(PREFIX + name, target="default", f=lowered, level=BEFORE_TVM)


for _name in FORMULAS:
    _register(_name)
