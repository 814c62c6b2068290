"""Bits of constants in kernels for a GPU."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

REINTERPRETED = {"int32": np.int32, "uint32": np.uint32, "float32": np.float32}


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
        known = isinstance(value, tirx.IntImm | tirx.FloatImm) and str(value.ty.dtype) in REINTERPRETED
        if not known or dtype not in REINTERPRETED:
            return call
        bits = np.array(value.value, REINTERPRETED[str(value.ty.dtype)]).view(REINTERPRETED[dtype])
        return tirx.const(bits.item(), dtype)

    def folded(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, constant)))

    return tvm.IRModule({name: folded(func) for name, func in mod.functions.items()}, attrs=mod.attrs)
