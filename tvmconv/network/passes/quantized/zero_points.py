"""Zero points that are known only when the model runs, subtracted after the sums of products: factors stay bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmconv.problem.dtypes import QUANTIZED

from ...graph.constants import Array, constant_value, static_shape
from ...graph.graph import call_of, calls
from ...sites.integers import in_int8

CONVOLUTIONS = {"relax.nn.conv1d": relax.op.nn.conv1d, "relax.nn.conv2d": relax.op.nn.conv2d}


def split_zero_points(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with sums of products of bytes, less the products of their zero point with the weights.

    Padding is filled with zero points, so that their products are the same for each output of a channel. A weight that
    does not fit int8 after its zero point is subtracted is shifted by the middle of each output's range so that it
    does, and the sums of x times this middle are added.

    Before: `y = conv(R.subtract(R.astype(x), z), w)`, in int32.
    After: `s = conv(R.astype(R.call_tir(padded, (x, z))), w)`, `y = R.subtract(s, R.multiply(z, sums_of_w))`.
    """
    splitter = _Splitter(mod)
    main = splitter.visit_expr(mod["main"])
    mod = splitter.builder_.get()
    mod["main"] = main
    return relax.transform.DeadCodeElimination()(mod)


@mutator
class _Splitter(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        is_convolution = isinstance(call.op, tvm.ir.Op) and call.op.name in CONVOLUTIONS
        if not is_convolution and not calls(call, "matmul"):
            return call
        if (weight := constant_value(call.args[1])) is None or self._bytes(call.args[0]) is None:
            return call
        if not is_convolution and weight.ndim != 2:
            return call
        if in_int8(weight) is not None:
            return self._with_bytes(call, weight)
        axis = 0 if is_convolution else weight.ndim - 1
        others = tuple(each for each in range(weight.ndim) if each != axis)
        if not weight.size or (is_convolution and int(call.attrs.groups) > 1):
            return call
        middle = (weight.max(axis=others, keepdims=True) + weight.min(axis=others, keepdims=True) + 1) // 2
        if in_int8(weight - middle) is None:
            return call
        sums = self.builder_.emit(self._with_bytes(_with_weight(call, weight - middle), weight - middle))
        if is_convolution:
            ones = np.ones_like(weight[:1])
            total = self._with_bytes(_with_weight(call, ones), ones)
            middle = middle.reshape(-1, *(1,) * (weight.ndim - 2))
        else:
            total = relax.op.sum(call.args[0], axis=-1, keepdims=True)
        more = relax.op.multiply(self.builder_.emit(total), relax.const(middle.astype(np.int32)))
        return relax.op.add(sums, self.builder_.emit(more))

    def _bytes(self, x: relax.Expr) -> Any:
        """Return the cast of bytes to int32 that a factor is, maybe less a zero point; None for other factors."""
        difference = call_of(self._binding(x), "subtract")
        cast = call_of(self._binding(x if difference is None else difference.args[0]), "astype")
        return cast if cast is not None and str(cast.args[0].ty.dtype) in QUANTIZED else None

    def _with_bytes(self, call: relax.Call, weight: Array) -> relax.Expr:
        """Return a call on bytes, less the products of a zero point that is known only when the model runs."""
        difference = call_of(self._binding(call.args[0]), "subtract")
        zero_point = None if difference is None else difference.args[1]
        convolution = CONVOLUTIONS.get(call.op.name)
        if zero_point is None or not _is_subtracted_after_sums(zero_point, in_rows=convolution is None):
            return call
        x = self._bytes(call.args[0]).args[0]
        if convolution is None:
            sums, total = relax.op.matmul(self._in_int32(x), call.args[1]), weight.sum(axis=0)
        else:
            attrs, rank = call.attrs, weight.ndim - 2
            padding = [int(size) for size in attrs.padding]
            if any(padding):
                x = self.builder_.emit_te(_padded, x, zero_point, padding, primfunc_name_hint="padded")
            how = attrs.strides, [0] * 2 * rank, attrs.dilation, attrs.groups
            layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
            sums = convolution(self._in_int32(x), call.args[1], *how, *layouts)
            total = weight.sum(axis=tuple(range(1, weight.ndim))).reshape(-1, *(1,) * rank)
        return relax.op.subtract(self.builder_.emit(sums), self._products(zero_point, total))

    def _in_int32(self, x: relax.Expr) -> relax.Expr:
        return self.builder_.emit(relax.op.astype(x, "int32"))

    def _products(self, zero_point: relax.Expr, weights: Array) -> relax.Expr:
        return self.builder_.emit(relax.op.multiply(zero_point, relax.const(weights.astype(np.int32))))

    def _binding(self, expr: relax.Expr) -> Any:
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else None


def _is_subtracted_after_sums(zero_point: relax.Expr, in_rows: bool) -> bool:
    """Return whether a zero point, one number or for a matrix one for each row, is subtracted after the sums.

    That is one that kernels do not take, as it is computed, or has a number for each row.
    """
    shape, constant = static_shape(zero_point.ty), constant_value(zero_point)
    if not in_rows or shape is None:
        return constant is None and not set(shape or ()) - {1}
    return (constant is None or constant.size > 1) and shape[-1:] in ((), (1,))


def _with_weight(call: relax.Call, weight: Array) -> relax.Call:
    """Return a call with another weight."""
    return relax.Call(call.op, [call.args[0], relax.const(weight.astype(np.int32))], call.attrs)


def _padded(x: te.Tensor, zero_point: te.Tensor, padding: Sequence[int]) -> te.Tensor:
    """Return x (N, C, ...) with zero points around it, by the numbers before all axes, then behind them."""
    rank = len(padding) // 2
    before, after = padding[:rank], padding[rank:]
    sizes = [size + first + last for size, first, last in zip(x.shape[2:], before, after, strict=True)]

    def value(n: tirx.Var, c: tirx.Var, *position: tirx.Var) -> tirx.PrimExpr:
        source = [index - size for index, size in zip(position, before, strict=True)]
        inside = [test for index, size in zip(source, x.shape[2:], strict=True) for test in (index >= 0, index < size)]
        zero = zero_point[(0,) * len(zero_point.shape)].astype(x.dtype)
        pixel = (n, c, *source)
        return tirx.if_then_else(tirx.all(*inside), x[pixel], zero)

    return te.compute((*x.shape[:2], *sizes), value, name="padded")
