"""TVM's fusion of functions, with open sizes in one form, so that equal ones are seen to be equal."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax
from tvm.sym import Analyzer
from tvm.tirx.buffer import BufferType

from tvmconv.lowering import is_scheduled


def fused(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with its functions fused by their patterns.

    FuseTIR compares the shape that one function gives an array with the one that another function reads, as written.

    Before: `a: T.Buffer((w - 3 + (w - 3),))`. After: `a: T.Buffer((w * 2 - 6,))`.
    """
    mod = mod.clone()
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function) or not is_scheduled(func):
            mod[var] = tvm_ffi.structural_map(func, [(BufferType, _simplified), (relax.ShapeExpr, _simplified_shape)])
    return tvm.transform.Sequential([relax.transform.FuseOps(), relax.transform.FuseTIR()])(mod)


def _simplified_shape(shape: relax.ShapeExpr) -> relax.ShapeExpr:
    return relax.ShapeExpr([Analyzer().simplify(size, 3) for size in shape.values])


def _simplified(array: BufferType) -> BufferType:
    shape = [Analyzer().simplify(size, 3) for size in array.shape]
    if all(map(tvm_ffi.structural_equal, shape, array.shape)):
        return array
    return BufferType(
        array.dtype,
        array.storage_scope,
        shape,
        array.strides,
        array.elem_offset,
        array.data_alignment,
        array.offset_factor,
        array.layout,
        array.allocated_addr,
    )
