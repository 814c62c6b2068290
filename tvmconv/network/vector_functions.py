"""Exponentials and the like in what TVM computes on a CPU, such that LLVM makes vectors of them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx

from ..compute.functions import Float32


def with_vector_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with formulas in the place of functions of the C library, which take a number at a time.

    Before: `y[i] = exp(x[i] - m)`. After: `y[i]` is the square of the polynomial of `Float32.exp` of half of it.
    """

    def formula(call: tvm.ir.Call) -> tirx.PrimExpr:
        name = call.op.name.rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""
        if name not in FORMULAS or str(call.ty.dtype) != "float32":
            return call
        arithmetic = Float32()
        return arithmetic.with_variables(FORMULAS[name](arithmetic, arithmetic.bound(call.args[0])))

    return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, formula)))


def _exp(arithmetic: Float32, y: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the square of exp(y / 2): `Float32.exp` by itself is infinite close to the largest number."""
    root = arithmetic.bound(arithmetic.exp(y * 0.5))
    return root * root


def _sigmoid(arithmetic: Float32, y: tirx.PrimExpr) -> tirx.PrimExpr:
    return 1.0 / (arithmetic.exp(-y) + 1.0)


FORMULAS: dict[str, Callable[[Float32, tirx.PrimExpr], tirx.PrimExpr]] = {
    "exp": _exp,
    "erf": Float32.erf,
    "sigmoid": _sigmoid,
    "tanh": Float32.tanh,
}
"""The formula of each function of float32 numbers, by the name of TVM's operator."""
