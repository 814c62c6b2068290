"""Replacement of variables in statements and expressions of TVM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

ROUNDINGS = {f"{room}.{name}": getattr(math, name) for room in ("tirx", "prim") for name in ("ceil", "floor", "trunc")}
"""The functions for TVM's operators that round floating-point numbers."""

CHOICE = tvm.ir.Op.get("prim.if_then_else")
"""The operator that reads one of two values on a condition."""


def substitute(node: Any, values: Mapping[tvm.ir.Var, Any]) -> Any:
    """Return a statement, an expression or another node with some variables replaced by expressions or integers.

    Before: `x[i + j] = y`. After, with 1 for i and `k * 2` for j: `x[1 + k * 2] = y`.
    """
    expressions = {
        var: tirx.IntImm(var.ty.dtype, value) if isinstance(value, int) else value for var, value in values.items()
    }
    return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda var: expressions.get(var, var)))


def evaluated(size: Any, values: Mapping[tvm.ir.Var, int]) -> int:
    """Return the value of an integer expression, given numbers for all of its variables."""
    return int(Analyzer().simplify(tvm_ffi.structural_map(substitute(size, values), (tvm.ir.Call, _folded))))


def _folded(call: tvm.ir.Call) -> Any:
    """Return the value of ceil, floor or trunc of a constant; other calls as they are."""
    rounding = ROUNDINGS.get(getattr(call.op, "name", ""))
    value = Analyzer().simplify(call.args[0]) if rounding else None
    return (
        tirx.FloatImm(value.ty.dtype, rounding(value.value)) if rounding and isinstance(value, tirx.FloatImm) else call
    )


def factors(product: Any) -> list[Any]:
    """Return the factors of a product, the last one first."""
    return [*factors(product.b), *factors(product.a)] if isinstance(product, tirx.Mul) else [product]


def conjuncts(test: Any) -> list[Any]:
    """Return the tests of which a test is the conjunction, the first one first."""
    return [*conjuncts(test.a), *conjuncts(test.b)] if isinstance(test, tirx.And) else [test]
