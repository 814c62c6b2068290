"""Remainders by powers of two on CPUs, with which LLVM's vectorizer goes wrong."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx


def with_hidden_masks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function for a CPU in which LLVM knows no remainder by a power of two.

    LLVM makes a mask of such a remainder. Elements at `x[i % 16]` are consecutive up to where the remainder starts
    again; a vector loop needs a check for that, which LLVM 22 forgets in many loops: it reads on behind the end of a
    row. A hidden mask is a number that LLVM does not know.

    Before: `x[i % 16 * 4 + j]`. After: `x[(i & hidden(15)) * 4 + j]`.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloorMod, _masked)))


def _masked(remainder: tirx.FloorMod) -> tvm.ir.Expr:
    """Return a remainder by a power of two as a mask behind LLVM's fence of floating point, which is no instruction."""
    divisor = remainder.b
    if not isinstance(divisor, tirx.IntImm) or int(divisor) < 2 or int(divisor) & (int(divisor) - 1):
        return remainder
    mask = tirx.const(float(int(divisor) - 1), "float64")
    fenced = tirx.call_llvm_pure_intrin("float64", "llvm.arithmetic.fence", mask)
    return tirx.bitwise_and(remainder.a, fenced.astype(remainder.a.ty.dtype))
