"""Shapes of functions in one form, so that FuseTIR sees that equal ones are equal."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer
from tvm.tirx.buffer import BufferType

from ..lowering import is_scheduled


@tvm.ir.transform.module_pass(opt_level=0, name="SimplifyShapes")
def simplify_shapes(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Return the module whose functions have open sizes of arrays in their simplest form.

    FuseTIR compares the shape that one function gives an array with the one that another function reads, as written.

    Before: `a: T.Buffer((w - 3 + (w - 3),))`. After: `a: T.Buffer((w * 2 - 6,))`.
    """
    mod = mod.clone()
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc) and not is_scheduled(func):
            mod[var] = tvm_ffi.structural_map(func, (BufferType, _simplified))
    return mod


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
