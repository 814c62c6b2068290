"""Convolutions and linear layers of half precision: their factors are cast to float32, in which the model computes.

Products of such factors are exact in float32, so that a kernel that reads them in half precision computes the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES

from ..graph.constants import Array, constant_value
from ..graph.graph import Block, call_of
from .epilogue import Tail


def half_of(expr: relax.Expr, block: Block) -> relax.Expr | None:
    """Return the operand of a cast from half precision to float32; None for anything else."""
    value = call_of(block.values.get(expr) if isinstance(expr, relax.Var) else expr, "astype")
    if value is None or str(value.ty.dtype) != "float32" or str(value.args[0].ty.dtype) not in NARROW:
        return None
    return value.args[0]


def half_factors(call: relax.Call, data: relax.Expr, block: Block) -> tuple[relax.Expr, Array] | None:
    """Return the factors in half precision of a convolution of data; None where they are anything else.

    A weight may be in float32 if the type in half precision has all of its numbers.
    """
    x, weight = half_of(data, block), constant_value(call.args[1])
    if x is None or weight is None or str(call.ty.dtype) != "float32":
        return None
    halves = in_half(weight, str(x.ty.dtype))
    return (x, halves) if np.array_equal(halves.astype(np.float32), weight, equal_nan=True) else None


def in_half(numbers: Array, dtype: str) -> Array:
    """Return numbers rounded to a type of half precision; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return numbers.astype(STORAGE_TYPES[dtype].numpy)


def half_tail(tail: Tail, dtype: str, block: Block) -> Tail:
    """Return the epilogue with the cast to half precision after it, where it can take that in; else as it was.

    A residual has to be cast from the same type, and is read in it.
    """
    # An activation is recognised by its formula, whose steps may include the cast and one back.
    inner = half_of(tail.output, block)
    output = block.only_reader(tail.output) if inner is None else inner
    value = None if output is None else call_of(block.values.get(output), "astype")
    if value is None or str(value.ty.dtype) != dtype:
        return tail
    residual = None if tail.residual is None else half_of(tail.residual, block)
    if tail.residual is not None and (residual is None or str(residual.ty.dtype) != dtype):
        return tail
    return replace(tail, output=output, residual=residual)
