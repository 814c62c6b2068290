"""TVM's fusion of functions, and the lowering of operators that are not fused, as TVM would compute wrongly."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm.tirx.buffer import BufferType

from tvmconv.lowering import OPAQUE, is_scheduled

from ..graph.convolutions import OPERATORS
from ..graph.graph import operator_name


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with its functions fused by their patterns, and with open sizes in one form.

    FuseTIR compares shapes as they are written: that of an array in the function that stores it, and in the one that
    reads it.

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


def lowered_unfused(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return an operator lowered to a function that TVM fuses with nothing, for `LegalizeOps`.

    Before: `y = R.nn.conv2d(x, w)`. After: `y = R.call_tir(conv2d, (x, w))`, where `conv2d` has an opaque pattern.
    """
    lowered = call.op.get_attr("FLegalize")(builder, call)
    if operator_name(lowered) != "relax.call_tir":
        return lowered
    function, *others = lowered.args
    # A new function: if the old one changed, the builder would not find it again for an equal operator.
    apart = builder.add_func(builder.get()[function].with_attr("op_pattern", OPAQUE), function.name_hint)
    return relax.Call(lowered.op, [apart, *others], lowered.attrs, lowered.ty_args)


def _slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a slice lowered, and kept apart if it goes backwards along an axis."""
    steps = call.args[4].fields if len(call.args) > 4 else ()
    is_reversed = any(isinstance(step, tirx.IntImm) and int(step) < 0 for step in steps)
    return lowered_unfused(builder, call) if is_reversed else call.op.get_attr("FLegalize")(builder, call)


REVERSING = {"relax.flip": lowered_unfused, "relax.strided_slice": _slice}
"""The functions that lower operators which may reverse axes, by name, for `LegalizeOps`.

TVM (in FlattenBuffer) simplifies falling indices wrongly if their axis is divided, as after a reshape.
"""


SEPARATED = {**dict.fromkeys(OPERATORS, lowered_unfused), **REVERSING}
"""The functions that lower operators which are not fused on a GPU, by name, for `LegalizeOps`.

TVM 0.27 schedules a fused grouped convolution (dlight's Reduction, where a thread owns several outputs) so that the
operators after it read registers of other threads: results are wrong and differ from run to run.
"""
