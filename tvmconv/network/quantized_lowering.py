"""What kernels of convolutions have not taken in of a quantized network: quantization, dequantization and averages.

They become functions of one element, which TVM fuses with what is between them: so a kernel reads integers, has float32
in registers, and writes integers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..compute.epilogue import rounded
from .constants import constant_value, static_shape
from .graph import operator_name
from .quantized import QuantizedConstant, Scaling, quantized_constant, scaling_of

PLANES = ("relax.mean", "relax.nn.adaptive_avg_pool2d")
"""Operators of Relax that compute means of whole planes, the second one where its output has one pixel."""


def lower_quantization(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with functions of one element for quantization and dequantization, and means of integers.

    Rounding is to nearest even and saturates, as in the kernels of convolutions; Relax rounds halves up. The mean of
    dequantized numbers is the sum of the integers, which is exact, dequantized with a smaller scale.

    Before: `y = R.mean(R.dequantize(x, s, z), [2, 3])`.
    After: `sum = R.call_tir(integer_sum, (x,))`, `y = R.call_tir(dequantize, (sum,))`.
    """
    for step in (_Means, _Elements):
        mutator_of_step = step(mod)
        main = mutator_of_step.visit_expr(mod["main"])
        mod = mutator_of_step.builder_.get()
        mod["main"] = main
        mod = relax.transform.DeadCodeElimination()(mod)
    return mod


@mutator
class _Means(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if operator_name(call) not in PLANES:
            return call
        inner = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        if operator_name(inner) != "relax.dequantize" or (scaling := scaling_of(inner)) is None:
            return call
        x, shape = inner.args[0], static_shape(inner.args[0].ty)
        axes = _axes(call, x.ty.ndim)
        if shape is None or not axes:
            return call
        count = prod(shape[axis] for axis in axes)
        keeps = call.ty.ndim == x.ty.ndim
        total = self.builder_.emit_te(_sum, x, axes, keeps, primfunc_name_hint="integer_sum")
        smaller = Scaling(scaling.scale / count, scaling.zero_point * count)
        return relax.op.dequantize(total, *smaller.operands, out_dtype="float32")


def _axes(call: relax.Call, rank: int) -> list[int]:
    """Return the axes that a mean is over; none for another pooling."""
    if operator_name(call) == "relax.mean":
        return sorted(int(axis) % rank for axis in call.attrs.axis or range(rank))
    is_whole = call.attrs.layout == "NCHW" and [int(size) for size in call.attrs.output_size or ()] == [1, 1]
    return [2, 3] if is_whole else []


def _sum(x: te.Tensor, axes: list[int], keeps: bool) -> te.Tensor:
    """Return the sums of integers over axes in int32."""
    reduced = [te.reduce_axis((0, x.shape[axis])) for axis in axes]
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keeps or axis not in axes]

    def total(*place: tirx.Var) -> tirx.PrimExpr:
        others = iter([index for axis, index in enumerate(place) if axis not in axes] if keeps else place)
        indices = [reduced[axes.index(axis)] if axis in axes else next(others) for axis in range(len(x.shape))]
        return te.sum(x[tuple(indices)].astype("int32"), axis=reduced)

    return te.compute(shape, total, name="integer_sum")


@mutator
class _Elements(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = operator_name(call)
        if name not in ("relax.quantize", "relax.dequantize"):
            return call
        constant = quantized_constant(call, lambda var: None)
        if isinstance(constant, QuantizedConstant):
            return relax.const(constant.numbers)
        x, scale, zero_point = call.args
        axis, dtype = int(call.attrs.axis) % max(x.ty.ndim, 1), str(call.ty.dtype)
        tensors, numbers = [x], []
        for operand in (scale, zero_point):
            value = constant_value(operand)
            numbers.append(value.item() if value is not None and value.size == 1 else None)
            tensors += [operand] if numbers[-1] is None else []
        element = _quantized if name == "relax.quantize" else _dequantized

        def function(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
            rest = iter(given)
            parameters = [_parameter(number, rest, axis) for number in numbers]
            return te.compute(
                x.shape, lambda *place: element(x[place], *(each(place) for each in parameters), dtype), name="element"
            )

        return self.builder_.call_te(function, *tensors, primfunc_name_hint=name.removeprefix("relax."))


def _parameter(number: float | None, tensors: object, axis: int) -> Callable[[tuple[tirx.Var, ...]], tirx.PrimExpr]:
    """Return a function that returns the parameter for an element at a place: the number, or one of a tensor."""
    if number is not None:
        return lambda place: tirx.const(number, "float32" if isinstance(number, float) else "int32")
    tensor = next(tensors)  # type: ignore[call-overload]
    if all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in tensor.shape):
        return lambda place: tensor[(0,) * len(tensor.shape)]
    return lambda place: tensor[place[axis]]


def _dequantized(x: tirx.PrimExpr, scale: tirx.PrimExpr, zero_point: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    return ((x.astype("int32") - zero_point.astype("int32")).astype("float32") * scale).astype(dtype)


def _quantized(y: tirx.PrimExpr, scale: tirx.PrimExpr, zero_point: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    limits = np.iinfo(dtype)
    point = int(zero_point) if isinstance(zero_point, tirx.IntImm) else zero_point.astype("int32")
    return rounded(y / scale, dtype, (int(limits.min), int(limits.max)), point)
