"""The lowering of quantization, dequantization and averages that no kernel of a convolution has taken in.

They become functions of one element, which TVM fuses with the operators between them: so a kernel reads integers, has
float32 in registers, and writes integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmconv.compute.epilogue import rounded

from ...graph.constants import constant_value, static_shape
from ...graph.graph import call_of, calls
from ...sites.quantized import Scaling, quantized_constant, scaling_of

POOLING = ("nn.adaptive_avg_pool2d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
"""Relax's average pooling; its spatial axes are from the third on, in NCHW as in blocks of channels."""


def lower_quantization(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with functions of one element for quantization and dequantization, and averages of integers.

    Rounding is to nearest even and saturates, as in the kernels of convolutions; Relax rounds halves up. The average of
    dequantized numbers is the sum of the integers, which is exact, dequantized with a smaller scale.

    Before: `y = R.mean(R.dequantize(x, s, z), [2, 3])`.
    After: `sum = R.call_tir(integer_sum, (x,))`, `y = R.call_tir(dequantize, (sum,))`.
    """
    for step in (_Averages, _Elements):
        rewriting = step(mod)
        main = rewriting.visit_expr(mod["main"])
        mod = rewriting.builder_.get()
        mod["main"] = main
        mod = relax.transform.DeadCodeElimination()(mod)
    return mod


@mutator
class _Averages(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not calls(call, "mean", *POOLING) or not isinstance(call.args[0], relax.Var):
            return call
        inner = call_of(self.lookup_binding(call.args[0]), "dequantize")
        if (scaling := scaling_of(inner)) is None or static_shape(inner.args[0].ty) is None:
            return call
        windows = _windows_of(call)
        if windows is None:
            return call
        shape, zero_point = call.ty.shape, scaling.zero_point

        def function(x: te.Tensor) -> te.Tensor:
            return _integer_sum(x, windows, zero_point, shape)

        total = self.builder_.emit_te(function, inner.args[0], primfunc_name_hint="integer_sum")
        count = windows.count
        smaller = Scaling(scaling.scale / count, scaling.zero_point * count)
        return relax.op.dequantize(total, *smaller.operands, out_dtype="float32")


@mutator
class _Elements(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not calls(call, "quantize", "dequantize"):
            return call
        if (constant := quantized_constant(call, lambda var: None)) is not None:
            return relax.const(constant.numbers)
        quantizes = calls(call, "quantize")
        x, scale, zero_point = call.args
        axis, dtype = int(call.attrs.axis) % max(x.ty.ndim, 1), str(call.ty.dtype)
        tensors, numbers = [x], []
        for operand in (scale, zero_point):
            value = constant_value(operand)
            numbers.append(value.item() if value is not None and value.size == 1 else None)
            tensors += [operand] if numbers[-1] is None else []
        element = _quantized if quantizes else _dequantized

        def function(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
            rest = iter(given)
            parameters = [_parameter(number, rest, axis) for number in numbers]

            def value(*index: tirx.Var) -> tirx.PrimExpr:
                scale, zero_point = (parameter(index) for parameter in parameters)
                return element(x[index], scale, zero_point, dtype)

            return te.compute(x.shape, value, name="element")

        return self.builder_.call_te(function, *tensors, primfunc_name_hint="quantize" if quantizes else "dequantize")


def _parameter(
    number: float | None, tensors: Iterator[te.Tensor], axis: int
) -> Callable[[tuple[tirx.Var, ...]], tirx.PrimExpr]:
    """Return a function from an element's index to its parameter: a number, or an element of the next tensor."""
    if number is not None:
        return lambda index: tirx.const(number, "float32" if isinstance(number, float) else "int32")
    tensor = next(tensors)
    if all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in tensor.shape):
        return lambda index: tensor[(0,) * len(tensor.shape)]
    return lambda index: tensor[index[axis]]


def _dequantized(x: tirx.PrimExpr, scale: tirx.PrimExpr, zero_point: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    return ((x.astype("int32") - zero_point.astype("int32")).astype("float32") * scale).astype(dtype)


def _quantized(y: tirx.PrimExpr, scale: tirx.PrimExpr, zero_point: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    limits = np.iinfo(dtype)
    point = int(zero_point) if isinstance(zero_point, tirx.IntImm) else zero_point.astype("int32")
    return rounded(y / scale, dtype, (int(limits.min), int(limits.max)), point)


@dataclass(frozen=True)
class _Windows:
    """The windows of an average, by the axes of the tensor that they span."""

    sizes: dict[int, int]
    strides: dict[int, int]
    before: dict[int, int]
    """The padding in front, whose elements count in the average."""

    @property
    def count(self) -> int:
        """The number of elements in a window."""
        return prod(self.sizes.values())


def _windows_of(call: Any) -> _Windows | None:
    """Return the windows of an average; None for one whose windows have different numbers of elements."""
    shape = static_shape(call.args[0].ty) or ()
    if calls(call, "mean"):
        axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or range(len(shape)))
        return _Windows({axis: shape[axis] for axis in axes}, {}, {})
    attrs = call.attrs
    if calls(call, "nn.adaptive_avg_pool2d"):
        is_whole = attrs.layout == "NCHW" and [int(size) for size in attrs.output_size or ()] == [1, 1]
        return _Windows({2: shape[2], 3: shape[3]}, {2: 1, 3: 1}, {}) if is_whole else None
    sizes, strides, padding = ([int(size) for size in each] for each in (attrs.pool_size, attrs.strides, attrs.padding))
    before, after = padding[: len(sizes)], padding[len(sizes) :]
    if any(int(size) != 1 for size in attrs.dilation) or (any(padding) and not attrs.count_include_pad):
        return None
    output = (static_shape(call.ty) or ())[2:]
    reached = [(count - 1) * stride + size for count, stride, size in zip(output, strides, sizes, strict=False)]
    if any(end > sum(edge) for end, edge in zip(reached, zip(shape[2:], before, after, strict=False), strict=False)):
        return None  # the last windows of `ceil_mode` reach past the padding
    return _Windows(*(dict(enumerate(each, start=2)) for each in (sizes, strides, before)))


def _integer_sum(x: te.Tensor, windows: _Windows, zero_point: int, shape: relax.ShapeExpr) -> te.Tensor:
    """Return the sums of integers in windows, in int32 and in a shape; padding is filled with zero points."""
    reduced = {axis: te.reduce_axis((0, size)) for axis, size in windows.sizes.items()}
    keeps = len(shape) == len(x.shape)

    def total(*output: tirx.Var) -> tirx.PrimExpr:
        outer = iter(output)
        indices, inside = [], []
        for axis, size in enumerate(x.shape):
            if axis not in reduced:
                indices.append(next(outer))
                continue
            index = next(outer) * windows.strides[axis] if windows.strides else next(outer) if keeps else 0
            index = index + reduced[axis] - windows.before.get(axis, 0)
            if windows.before.get(axis, 0) or windows.strides:
                inside += [index >= 0, index < size]
            indices.append(index)
        value = x[tuple(indices)].astype("int32")
        if any(windows.before.values()):
            value = tirx.if_then_else(tirx.all(*inside), value, zero_point)
        return te.sum(value, axis=list(reduced.values()))

    return te.compute(list(shape), total, name="integer_sum")
