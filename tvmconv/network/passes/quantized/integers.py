"""A pass over quantized networks that leaves tensors integers wherever that makes no difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...graph.constants import constant_value
from ...graph.convolutions import is_convolution
from ...graph.graph import blocks_of, call_of, calls, rebind
from ...sites.quantized import MOVING, Scaling, broadcast_along_axis, quantized_constant, scaling_of

CHOOSING = ("max", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "strided_slice", "tile")
"""Operators of Relax, beside those that move elements, whose results consist of elements of their operands."""

PUSHED = (*MOVING, *CHOOSING)


def keep_integers(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with dequantization as late as possible, repeated for each reader.

    Constants are dequantized here and now, except for weights, whose integers a kernel may take.

    Before: `a = R.dequantize(x)`, `b = R.nn.max_pool2d(a)`, `y = R.quantize(b)`, with the same scale and zero point.
    After: `y = R.nn.max_pool2d(x)`.
    """
    mod = _quantized_early(mod).clone()
    mod["main"] = _Keeper(mod).visit_expr(mod["main"])
    return mod


def _quantized_early(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with quantization before operators that choose or move elements and that nothing else reads.

    Rounding and saturating keep the order, so the largest number becomes the largest integer.

    Before: `b = R.nn.max_pool2d(a)`, `y = R.quantize(b)`. After: `b = R.quantize(a)`, `y = R.nn.max_pool2d(b)`.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (last := call_of(value, "quantize")) is None or scaling_of(last) is None:
                continue
            operators: list[Any] = []
            source = last.args[0]
            while block.only_reader(source) is not None and calls(block.values[source], *PUSHED):
                operators.append(block.values[source])
                source = operators[-1].args[0]
            result = relax.Call(last.op, [source, *last.args[1:]], last.attrs)
            for each in reversed(operators):
                result = relax.Call(each.op, [result, *each.args[1:]], each.attrs)
            if operators:
                values[var] = result
    return rebind(mod, values)


@mutator
class _Keeper(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._weights = _weights(mod)
        self._is_weight = False

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._is_weight = binding.var in self._weights
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if calls(call, "dequantize") and not self._is_weight:
            constant = quantized_constant(call, self._binding)
            return call if constant is None else relax.const(constant.numbers)
        quantizes = calls(call, "quantize")
        if quantizes and (integers := self._quantized(call)) is not None:
            return integers
        joins = calls(call, "concat") and isinstance(call.args[0], relax.Tuple)
        operands = list(call.args[0].fields) if joins else list(call.args)
        inner = [self._dequantization(each) for each in operands]
        if all(each is None for each in inner):
            return call
        first, scaling = inner[0], scaling_of(inner[0])
        if scaling is not None:
            if quantizes and scaling == scaling_of(call) and first.args[0].ty.dtype == call.ty.dtype:
                return first.args[0]
            if joins and all(_is_alike(each, first) for each in inner):
                return self._pushed(call, [relax.Tuple([each.args[0] for each in inner])], scaling)
            if calls(call, *PUSHED):
                return self._pushed(call, [first.args[0], *call.args[1:]], scaling)
        # Each reader gets a dequantization, which TVM can fuse with it.
        operands = [
            each if found is None else self.builder_.emit(relax.Call(found.op, found.args, found.attrs), each.name)
            for each, found in zip(operands, inner, strict=True)
        ]
        return relax.Call(call.op, [relax.Tuple(operands)] if joins else operands, call.attrs)

    def _pushed(self, call: relax.Call, operands: Sequence[relax.Expr], scaling: Scaling) -> relax.Expr:
        """Return the dequantization of the result that an operator computes from integers."""
        integers = self.builder_.emit(relax.Call(call.op, operands, call.attrs))
        return relax.op.dequantize(integers, *scaling.operands, out_dtype="float32")

    def _dequantization(self, operand: relax.Expr) -> Any:
        """Return the dequantization that a variable is bound to, unless it is one of a constant."""
        value = call_of(self._binding(operand) if isinstance(operand, relax.Var) else None, "dequantize")
        return None if value is None or constant_value(value.args[0]) is not None else value

    def _quantized(self, call: relax.Call) -> relax.Expr | None:
        """Return the integers of a constant that is quantized; None for anything else."""
        numbers, scale, zero_point = (constant_value(self._binding(each)) for each in call.args)
        if numbers is None or scale is None or zero_point is None:
            return None
        axis = int(call.attrs.axis)
        scale, zero_point = (broadcast_along_axis(each, numbers.shape, axis) for each in (scale, zero_point))
        limits = np.iinfo(str(call.ty.dtype))
        integers = np.rint(numbers / scale).astype(np.float64) + zero_point
        return relax.const(np.clip(integers, limits.min, limits.max).astype(limits.dtype))

    def _binding(self, expr: relax.Expr) -> relax.Expr | None:
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr


def _weights(mod: tvm.IRModule) -> set[relax.Var]:
    """Return the variables that hold the weights of convolutions and products, also before their elements are moved."""
    found: set[relax.Var] = set()
    for block in blocks_of(mod):
        for var, value in reversed(block.values.items()):
            if is_convolution(value) or calls(value, "matmul"):
                found.update(each for each in value.args[1:] if isinstance(each, relax.Var))
            elif calls(value, *MOVING) and var in found and isinstance(value.args[0], relax.Var):
                found.add(value.args[0])
    return found


def _is_alike(one: Any, other: Any) -> bool:
    """Return whether both are dequantizations of one type with one scaling."""
    if one is None or scaling_of(one) != scaling_of(other):
        return False
    return bool(one.args[0].ty.dtype == other.args[0].ty.dtype)
