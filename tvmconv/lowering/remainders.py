"""Remainders by powers of two in indices, on CPUs, where LLVM's vectorizer goes wrong with two of them."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad


def with_hidden_masks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function for a CPU in which LLVM sees at most one mask in the index of an array.

    LLVM makes a mask of a remainder by a power of two. Elements are consecutive up to where the remainder starts again;
    a vector loop needs a check for that. LLVM 22 forgets this check for a loop around an unrolled one that has a mask
    as well: it reads and writes behind the end of a row. A single mask is right, and a hidden one is a number that LLVM
    does not know.

    Before: `x[i % 16 * 4 + j % 4]`. After: `x[(i & hidden(15)) * 4 + j % 4]`.
    """
    return func.with_body(
        tvm_ffi.structural_map(func.body, [(kind, _with_hidden_masks) for kind in (TensorLoad, tirx.BufferStore)])
    )


def _with_hidden_masks(access: TensorLoad | tirx.BufferStore) -> TensorLoad | tirx.BufferStore:
    remainders: list[tirx.FloorMod] = []
    for index in access.indices:
        tvm_ffi.structural_walk(index, [(tirx.FloorMod, remainders.append)])
    *hidden, _ = dict.fromkeys(str(each) for each in remainders if _is_mask(each)) or [""]
    if not hidden:
        return access

    def masked(remainder: tirx.FloorMod) -> tvm.ir.Expr:
        return _masked(remainder) if str(remainder) in hidden else remainder

    indices = [tvm_ffi.structural_map(index, (tirx.FloorMod, masked)) for index in access.indices]
    if isinstance(access, tirx.BufferStore):
        return tirx.BufferStore(access.buffer, access.value, indices)
    return tirx.BufferLoad(access.source, indices)


def _is_mask(remainder: tirx.FloorMod) -> bool:
    divisor = remainder.b
    return isinstance(divisor, tirx.IntImm) and int(divisor) > 1 and int(divisor) & (int(divisor) - 1) == 0


def _masked(remainder: tirx.FloorMod) -> tvm.ir.Expr:
    """Return a remainder by a mask behind LLVM's fence for floating point, which is no instruction."""
    mask = tirx.const(float(int(remainder.b) - 1), "float64")
    fenced = tirx.call_llvm_pure_intrin("float64", "llvm.arithmetic.fence", mask)
    return tirx.bitwise_and(remainder.a, fenced.astype(remainder.a.ty.dtype))
