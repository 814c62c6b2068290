"""Bits of constants in kernels for a GPU."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

WORDS = ("int32", "uint32", "float32")
"""The types of 32 bits, whose bits are read as those of each other."""


def with_constant_bits(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of kernels in which a constant's bits, read as another type, are a constant of that type.

    TVM's code for CUDA takes the address of what is read so, which a constant has not. There are such constants where
    what is past the last output channel of a tile goes through an activation.

    Before: `T.reinterpret("int32", T.float32(12582912.0))`. After: `1262485504`.
    """

    def constant(call: tvm.ir.Call) -> tirx.PrimExpr:
        if not str(getattr(call.op, "name", "")).endswith("reinterpret"):
            return call
        (value,), dtype = call.args, str(call.ty.dtype)
        own = str(value.ty.dtype)
        if not isinstance(value, tirx.IntImm | tirx.FloatImm) or own not in WORDS or dtype not in WORDS:
            return call
        return tirx.const(np.array(value.value, own).view(dtype).item(), dtype)

    def folded(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, constant)))

    return tvm.IRModule({name: folded(func) for name, func in mod.functions.items()}, attrs=mod.attrs)
