"""Converters of pooling: windows begin and end as in ONNX, and Relax's operators do the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .constants import Array, sizes_of
from .faults import Refused
from .onnx_node import OPEN_HINT, Node


@dataclass(frozen=True)
class Window:
    """A window along one axis."""

    inputs: int | tirx.PrimExpr
    outputs: int | tirx.PrimExpr
    size: int
    stride: int
    dilation: int
    before: int
    """The padding in front, in elements."""
    after: int
    """The padding behind, in elements, as the node gives it."""

    @property
    def reach(self) -> int:
        """The padding behind that the last window needs, in elements: more than `after` if the size is rounded up.

        Of an open size, which never is, it is `after`: the last window ends in it, or before.
        """
        if not isinstance(self.outputs, int) or not isinstance(self.inputs, int):
            return self.after
        end = (self.outputs - 1) * self.stride + (self.size - 1) * self.dilation + 1
        return max(end - self.before - self.inputs, 0)

    def counts(self, include_padding: bool) -> Array:
        """Return how many elements of each window, (outputs,), are in the input, or in it and its padding."""
        first, last = (-self.before, self.inputs + self.after) if include_padding else (0, self.inputs)
        start = np.arange(self.outputs) * self.stride - self.before
        places = start[:, None] + np.arange(self.size) * self.dilation
        inside: Array = ((places >= first) & (places < last)).sum(axis=1)
        return inside


def windows(node: Node) -> list[Window]:
    """Return the windows of a pooling node, one for each spatial axis."""
    kernel, x = node.attributes.get("kernel_shape"), node.operand(0)
    if kernel is None or x is None:
        raise Refused(f"it has no {'input' if x is None else 'kernel_shape'}", "a model with one")
    ones, zeros = [1] * len(kernel), [0] * 2 * len(kernel)
    strides, dilations = (node.attributes.get(key) or ones for key in ("strides", "dilations"))
    pads, auto_pad = node.attributes.get("pads") or zeros, node.text("auto_pad", "NOTSET")
    round_up = node.attributes.get("ceil_mode", 0) == 1
    sizes = (sizes_of(x.ty) or ())[2:]
    is_open = not all(isinstance(size, int) for size in sizes)
    if len(sizes) != len(kernel) or (is_open and (round_up or auto_pad in ("SAME_UPPER", "SAME_LOWER"))):
        raise Refused("the size of its input is known only when the model runs", OPEN_HINT)
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise Refused(
            f"its kernel_shape {kernel}, strides {strides}, dilations {dilations} or pads {pads} are too small"
        )
    found = []
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        inputs, extent = sizes[axis], (size - 1) * dilation + 1
        before, after = pads[axis], pads[axis + len(kernel)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            outputs = -(-inputs // stride)
            total = max((outputs - 1) * stride + extent - inputs, 0)
            before = (total + (auto_pad == "SAME_LOWER")) // 2
            after = total - before
        else:
            if auto_pad == "VALID":
                before = after = 0
            room = inputs + before + after - extent
            outputs = (-(-room // stride) if round_up else room // stride) + 1
            if round_up and (outputs - 1) * stride >= inputs + before:  # it would begin behind the input
                outputs -= 1
        if isinstance(outputs, int) and outputs < 1:
            raise Refused(f"its window of {extent} is larger than its input of {inputs}, padding included")
        found.append(Window(inputs, outputs, size, stride, dilation, before, after))
    return found


def max_pool(node: Node) -> relax.Expr:
    """Convert MaxPool, with the places of the largest elements where they are wanted."""
    axes = windows(node)
    y = node.emit(_pooled("max", node.operands[0], axes, True))
    if node.outputs == 1:
        return y
    node.shape()  # places are counted through the whole input
    by_columns = node.attributes.get("storage_order", 0) == 1
    return relax.Tuple([y, _indices(node, y, axes, by_columns)])


def average_pool(node: Node) -> relax.Expr:
    """Convert AveragePool; where Relax counts other elements, sums are divided by the count of ONNX."""
    axes, include = windows(node), bool(node.attributes.get("count_include_pad", 0))
    x = node.operands[0]
    if all(axis.reach <= axis.after for axis in axes) and (include or all(axis.dilation == 1 for axis in axes)):
        return _pooled("avg", x, axes, include)
    node.shape()  # counts are tables
    counts = [np.maximum(axis.counts(include), 1) for axis in axes]
    factors = prod(axis.size for axis in axes) / reduce(np.multiply.outer, counts)
    return relax.op.multiply(_pooled("avg", x, axes, True), relax.const(factors[None, None], x.ty.dtype))


def lp_pool(node: Node) -> relax.Expr:
    """Convert LpPool: the p-th root of sums of p-th powers."""
    axes, x = windows(node), node.operands[0]
    p, dtype = node.attributes.get("p", 2), x.ty.dtype
    size = relax.const(prod(axis.size for axis in axes), dtype)
    powers = relax.op.power(relax.op.abs(x), relax.const(p, dtype))
    total = relax.op.multiply(_pooled("avg", node.emit(powers), axes, True), size)
    return relax.op.power(total, relax.const(1 / p, dtype))


def _pooled(kind: str, x: relax.Expr, axes: list[Window], include_padding: bool) -> relax.Expr:
    if len(axes) > 3:
        raise Refused(f"windows with {len(axes)} axes are not supported")
    operator: Any = getattr(relax.op.nn, f"{kind}_pool{len(axes)}d")
    return operator(
        x,
        [axis.size for axis in axes],
        [axis.stride for axis in axes],
        [*(axis.before for axis in axes), *(axis.reach for axis in axes)],
        [axis.dilation for axis in axes],
        count_include_pad=include_padding,
    )


def _indices(node: Node, y: relax.Expr, axes: list[Window], by_columns: bool) -> relax.Expr:
    """Return for each window the index of its first largest element, counted through the whole input."""
    steps = [axis.inputs for axis in axes]
    plane = prod(steps)

    def compute(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        reduced = [te.reduce_axis((0, axis.size), f"r{place}") for place, axis in enumerate(axes)]

        def candidate(*at: tirx.Var) -> tirx.Expr:
            places = [
                output * axis.stride + r * axis.dilation - axis.before
                for output, r, axis in zip(at[2:], reduced, axes, strict=True)
            ]
            inside = [te.all(place >= 0, place < axis.inputs) for place, axis in zip(places, axes, strict=True)]
            flat = reduce(
                lambda flat, each: flat * each[1] + each[0], zip(places, steps, strict=True), tirx.const(0, "int64")
            )
            nowhere = tirx.const(plane, "int64")
            found = tirx.Select(x(*at[:2], *places) == y[at], flat, nowhere)
            return te.min(te.if_then_else(te.all(*inside), found, nowhere), axis=reduced)

        first = te.compute(y.shape, candidate, "first")

        def index(*at: tirx.Var) -> tirx.Expr:
            flat = first[at]
            if by_columns:
                places = []
                for size in reversed(steps):
                    places.append(flat % size)
                    flat = flat // size
                flat = reduce(lambda flat, each: flat * each[1] + each[0], zip(places, reversed(steps), strict=True), 0)
            return (at[0] * x.shape[1] + at[1]) * plane + flat

        return te.compute(y.shape, index, "index")

    return node.builder.emit_te(compute, node.operands[0], y, primfunc_name_hint="max_pool_indices")
