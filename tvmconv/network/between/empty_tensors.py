"""Tensors without elements: functions that have nothing to do, and constants, which TVM cannot read back."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.lowering import OPAQUE

from ..graph.constants import static_shape


def without_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function whose result has no elements, without its loops: TVM's schedules would divide by its size."""
    root = SBlockRealize([], True, SBlock([], [], [], "root", tirx.Evaluate(0)))
    return func.with_body(root).with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def make_empty_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module in which a function makes each constant without elements when the network runs.

    Before: `R.output((x, R.const([])))`. After: `y = R.call_tir(empty, ())`, `R.output((x, y))`.
    """
    maker = _Maker(mod)
    for var, function in mod.functions.items():
        if isinstance(function, relax.Function):
            maker.builder_.update_func(var, maker.visit_expr(function))
    return maker.builder_.get()


@mutator
class _Maker(PyExprMutator):  # type: ignore[misc]
    def visit_generic_const_(self, constant: GenericConst) -> relax.Expr:
        shape = static_shape(constant.ty) if isinstance(constant.ty, relax.TensorType) else None
        if shape is None or 0 not in shape:
            return constant
        dtype = str(constant.ty.dtype)
        nothing = te.compute(shape, lambda *_: tirx.const(0, dtype), name="empty")
        function = self.builder_.add_func(without_loops(te.create_prim_func([nothing])), "empty")
        return self.builder_.emit(relax.call_tir(function, (), constant.ty))
