"""Converters of ONNX's quantization and dequantization, whose scales and zero points are checked."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from tvm import relax

from tvmconv.network.graph.constants import static_shape
from tvmconv.network.graph.faults import Refused
from tvmconv.network.sites.quantized import parameter_problem

from ..node import Node

BLOCKED_HINT = "quantize it with one scale, or with one for each channel"


def dequantize_linear(node: Node) -> relax.Expr:
    """Convert DequantizeLinear, with one scale or one for each slice along an axis, to the type of its scale."""
    x, scale = node.operands[:2]
    dtype = str(x.ty.dtype)
    zero_point = _checked(node, dtype, "input")
    narrow = str(scale.ty.dtype)
    y = node.emit(relax.op.dequantize(x, node.builder.cast(scale, "float32"), zero_point, _axis(node, x), "float32"))
    wanted = node.attributes.get("output_dtype", 0)
    dtype = _named(wanted) if wanted else narrow
    return y if dtype == "float32" else relax.op.astype(y, dtype)


def quantize_linear(node: Node) -> relax.Expr:
    """Convert QuantizeLinear, with one scale or one for each slice along an axis."""
    x, scale = node.operands[:2]
    given, wanted = node.operand(2), node.attributes.get("output_dtype", 0)
    dtype = _named(wanted) if wanted else "uint8" if given is None else str(given.ty.dtype)
    if given is not None and str(given.ty.dtype) != dtype:
        raise Refused(f"its zero point is of {given.ty.dtype}, and its output of {dtype}", BLOCKED_HINT)
    zero_point = _checked(node, dtype, "output")
    return relax.op.quantize(
        node.builder.cast(x, "float32"), node.builder.cast(scale, "float32"), zero_point, _axis(node, x), dtype
    )


def dynamic_quantize_linear(node: Node) -> relax.Expr:
    """Convert DynamicQuantizeLinear: integers, their scale, 1 for numbers that are all 0, and their zero point."""
    (x,) = node.operands
    zero, largest = relax.const(0.0, "float32"), relax.const(255.0, "float32")
    low = node.emit(relax.op.minimum(_extreme(node, x, relax.op.min), zero))
    high = node.emit(relax.op.maximum(_extreme(node, x, relax.op.max), zero))
    width = node.emit(relax.op.subtract(high, low))
    one = relax.const(1.0, "float32")
    scale = node.emit(relax.op.where(relax.op.equal(width, zero), one, relax.op.divide(width, largest)))
    middle = relax.op.clip(relax.op.subtract(zero, relax.op.divide(low, scale)), 0, 255)
    zero_point = node.emit(relax.op.astype(relax.op.round(middle), "uint8"))
    return relax.Tuple([node.emit(relax.op.quantize(x, scale, zero_point, 0, "uint8")), scale, zero_point])


def _extreme(node: Node, x: relax.Expr, reduce: Callable[..., relax.Expr]) -> relax.Expr:
    """Return the least or the largest number of x: first of each column, where vectors have neighbouring columns."""
    if x.ty.ndim > 1:
        x = node.emit(reduce(x, axis=list(range(x.ty.ndim - 1))))
    return node.emit(reduce(x))


def _checked(node: Node, dtype: str, kind: str) -> relax.Expr:
    """Return the zero point, 0 where it is left out; raise `Refused` for parameters that make no sense."""
    x, scale, zero_point = node.operands[0], node.operands[1], node.operand(2)
    if node.attributes.get("block_size", 0) or scale.ty.ndim > 1:
        raise Refused("its scale is blocked, which tvmconv has not", BLOCKED_HINT)
    if node.attributes.get("precision", 0):
        raise Refused("its precision is given, which tvmconv does not support", "export the model without it")
    shape = static_shape(x.ty)
    size = None if shape is None else shape[_axis(node, x)] if shape else 1
    if problem := parameter_problem(scale, zero_point, dtype, size, kind):
        raise Refused(problem, "quantize the model anew")
    return relax.const(0, dtype) if zero_point is None else zero_point


def _axis(node: Node, x: relax.Expr) -> int:
    """Return the axis of the scales, counted from the front; 0 for a single scale on an axis that x has not."""
    axis, rank = node.attributes.get("axis", 1), x.ty.ndim
    if -rank <= axis < rank:
        return int(axis % rank)
    if node.operands[1].ty.ndim == 0 or rank <= 1:
        return 0
    scale = static_shape(node.operands[1].ty)
    if scale == (1,):
        return 0
    raise Refused(f"its axis is {axis}, and its input has {rank}", "quantize the model anew")


def _named(element: int) -> str:
    """Return TVM's name for a type of ONNX."""
    return str(onnx.helper.tensor_dtype_to_np_dtype(element))
