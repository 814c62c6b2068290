"""Converters of pooling: windows begin and end as in ONNX, and Relax's operators do the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvmconv.network.graph.constants import Array, sizes_of
from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size, SizeFacts, as_expr, python_text

from ..node import Node
from .padding import lowest, shifted
from .windows import SAME, read_windows, require_room, same_padding


@dataclass(frozen=True)
class Window:
    """A window along one axis."""

    inputs: Size
    outputs: Size
    size: int
    stride: int
    dilation: int
    before: Size
    """The padding in front, in elements."""
    after: Size
    """The padding behind, in elements, as the node gives it."""
    reach: Size
    """The padding behind that the last window needs, in elements: more than `after` if the size is rounded up.

    Of an open size, which is not rounded up, it is `after`: the last window ends in it, or before.
    """

    @property
    def is_known(self) -> bool:
        """True if every size of the input has one and the same padding."""
        return isinstance(self.before, int) and isinstance(self.reach, int)

    @property
    def total(self) -> Size:
        """The size with the padding that windows reach."""
        return (self.outputs - 1) * self.stride + (self.size - 1) * self.dilation + 1

    def counts(self, include_padding: bool) -> Array:
        """Return how many elements of each window, (outputs,), are in the input, or in it and its padding."""
        first, last = (-self.before, self.inputs + self.after) if include_padding else (0, self.inputs)
        start = np.arange(self.outputs) * self.stride - self.before
        places = start[:, None] + np.arange(self.size) * self.dilation
        inside: Array = ((places >= first) & (places < last)).sum(axis=1)
        return inside

    def count(self, output: tirx.Expr, before: tirx.Expr, first: tirx.Expr, last: tirx.Expr) -> tirx.Expr:
        """Return how many elements of a window are from one element of the input on and before another."""
        start = output * self.stride - before

        def below(bound: tirx.Expr) -> tirx.Expr:
            """Return the number of elements of the window that are before a bound."""
            distance = tirx.max(bound - start, as_expr(0))
            return tirx.min((distance + self.dilation - 1) // self.dilation, as_expr(self.size))

        return below(last) - below(first)


def windows(node: Node) -> list[Window]:
    """Return the windows of a pooling node, one for each spatial axis."""
    kernel, x = node.attributes.get("kernel_shape"), node.operand(0)
    if kernel is None or x is None:
        raise Refused(f"it has no {'input' if x is None else 'kernel_shape'}", "a model with one")
    sizes = node.shape_of()
    sizes = sizes[2:]
    if len(sizes) != len(kernel):
        raise Refused(f"its kernel_shape has {len(kernel)} numbers for {len(sizes)} axes", "one for each")
    read = read_windows(node, kernel)
    if any(width >= size for width, size in zip((*read.before, *read.after), (*kernel, *kernel), strict=True)):
        raise Refused(f"its pads {[*read.before, *read.after]} are not below its kernel_shape {list(kernel)}", "less")
    round_up = node.attributes.get("ceil_mode", 0) == 1
    facts, found = node.builder.facts, []
    for axis, (inputs, extent, stride) in enumerate(zip(sizes, read.extents, read.strides, strict=True)):
        before: Size = read.before[axis]
        after: Size = read.after[axis]
        node.require(as_expr(inputs) >= 1, f"needs elements along axis {axis + 2}, which has {python_text(inputs)}")
        if read.auto_pad in SAME:
            before, total = same_padding(facts, inputs, extent, stride, read.auto_pad == "SAME_UPPER")
            reach = _at_least_0(facts.simplified(total - inputs - before))
            outputs = facts.simplified((inputs - 1) // stride + 1)
            after = reach
        else:
            outputs = _outputs(facts, inputs, before, after, extent, stride, round_up)
            reach = after
            if isinstance(inputs, int) or round_up:
                reach = _at_least_0(facts.simplified((outputs - 1) * stride + extent - before - inputs))
            require_room(node, outputs >= 1, extent, inputs)
        found.append(Window(inputs, outputs, kernel[axis], stride, read.dilations[axis], before, after, reach))
    return found


def _outputs(facts: SizeFacts, inputs: Size, before: int, after: int, extent: int, stride: int, round_up: bool) -> Size:
    """Return the number of outputs along an axis; rounded up, no window begins behind the input."""
    if not round_up:
        return facts.simplified((inputs + before + after - extent) // stride + 1)
    return facts.simplified((inputs + before - 1 + min(after - extent + stride, 0)) // stride + 1)


def _at_least_0(size: Size) -> Size:
    return max(size, 0) if isinstance(size, int) else tirx.max(size, as_expr(0))


def max_pool(node: Node) -> relax.Expr:
    """Convert MaxPool, with the places of the largest elements where they are wanted."""
    axes = windows(node)
    y = node.emit(_pooled(node, "max", node.operands[0], axes, True))
    if node.outputs == 1:
        return y
    by_columns = node.attributes.get("storage_order", 0) == 1
    return relax.Tuple([y, _indices(node, y, axes, by_columns)])


def average_pool(node: Node) -> relax.Expr:
    """Convert AveragePool; where Relax counts other elements, sums are divided by the count of ONNX."""
    axes, include = windows(node), bool(node.attributes.get("count_include_pad", 0))
    x = node.operands[0]
    is_counted = all(axis.is_known and axis.reach <= axis.after for axis in axes)
    if is_counted and (include or all(axis.dilation == 1 for axis in axes)):
        return _pooled(node, "avg", x, axes, include)
    y = _pooled(node, "avg", x, axes, True)
    if not all(isinstance(axis.inputs, int) for axis in axes):
        return _by_counts(node, node.emit(y), axes, include)
    counts = [np.maximum(axis.counts(include), 1) for axis in axes]
    factors = prod(axis.size for axis in axes) / reduce(np.multiply.outer, counts)
    return relax.op.multiply(y, relax.const(factors[None, None], x.ty.dtype))


def _by_counts(node: Node, y: relax.Expr, axes: list[Window], include_padding: bool) -> relax.Expr:
    """Return averages over whole windows as those over the elements that count, of an input with open sizes."""

    def compute(
        y: te.Tensor, before: Sequence[tirx.Expr], first: Sequence[tirx.Expr], last: Sequence[tirx.Expr]
    ) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            counts = [
                axis.count(output.astype("int64"), *bounds)
                for axis, output, *bounds in zip(axes, at[2:], before, first, last, strict=True)
            ]
            count = tirx.max(reduce(lambda a, b: a * b, counts), as_expr(1))
            whole = tirx.const(prod(axis.size for axis in axes), "float32")
            return y(*at) * (whole / count.astype("float32")).astype(y.dtype)

        return te.compute(y.shape, element, name="averages", tag=topi.tag.INJECTIVE)

    before = [as_expr(axis.before) for axis in axes]
    first = [as_expr(0) - as_expr(axis.before if include_padding else 0) for axis in axes]
    last = [as_expr(axis.inputs) + as_expr(axis.after if include_padding else 0) for axis in axes]
    return node.builder.emit_te(compute, y, before, first, last, primfunc_name_hint="averages")


def lp_pool(node: Node) -> relax.Expr:
    """Convert LpPool: the p-th root of sums of p-th powers."""
    axes, x = windows(node), node.operands[0]
    p, dtype = node.attributes.get("p", 2), x.ty.dtype
    size = relax.const(prod(axis.size for axis in axes), dtype)
    powers = relax.op.power(relax.op.abs(x), relax.const(p, dtype))
    total = relax.op.multiply(_pooled(node, "avg", node.emit(powers), axes, True), size)
    return relax.op.power(total, relax.const(1 / p, dtype))


def _pooled(node: Node, kind: str, x: relax.Expr, axes: list[Window], include_padding: bool) -> relax.Expr:
    """Return Relax's pooling; a function pads beforehand where the padding depends on an open size."""
    if len(axes) > 3:
        raise Refused(f"windows with {len(axes)} axes are not supported")
    if not all(axis.is_known for axis in axes):
        value = lowest(str(x.ty.dtype)) if kind == "max" else None
        totals = [axis.inputs if axis.is_known else node.builder.facts.simplified(axis.total) for axis in axes]
        front = [0 if axis.is_known else axis.before for axis in axes]
        shape = [*(sizes_of(x.ty) or ())[:2], *totals]
        x = shifted(node.builder, x, [0, 0, *front], shape, value=value)
    operator: Any = getattr(relax.op.nn, f"{kind}_pool{len(axes)}d")
    return operator(
        x,
        [axis.size for axis in axes],
        [axis.stride for axis in axes],
        [axis.before if axis.is_known else 0 for axis in axes] + [axis.reach if axis.is_known else 0 for axis in axes],
        [axis.dilation for axis in axes],
        count_include_pad=include_padding,
    )


def _indices(node: Node, y: relax.Expr, axes: list[Window], by_columns: bool) -> relax.Expr:
    """Return for each window the index of its first largest element, counted through the whole input."""

    def compute(x: te.Tensor, y: te.Tensor, before: Sequence[tirx.Expr]) -> te.Tensor:
        steps = list(x.shape[2:])
        plane = reduce(lambda a, b: a * b, steps, tirx.const(1, "int64"))
        reduced = [te.reduce_axis((0, axis.size), f"r{place}") for place, axis in enumerate(axes)]

        def candidate(*at: tirx.Var) -> tirx.Expr:
            places = [
                output * axis.stride + r * axis.dilation - first
                for output, r, axis, first in zip(at[2:], reduced, axes, before, strict=True)
            ]
            inside = [te.all(place >= 0, place < size) for place, size in zip(places, steps, strict=True)]
            flat = reduce(
                lambda flat, each: flat * each[1] + each[0], zip(places, steps, strict=True), tirx.const(0, "int64")
            )
            found = tirx.if_then_else(te.all(*inside), tirx.Select(x(*at[:2], *places) == y[at], flat, plane), plane)
            return te.min(found, axis=reduced)

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

    before = [as_expr(axis.before) for axis in axes]
    return node.builder.emit_te(compute, node.operands[0], y, before, primfunc_name_hint="max_pool_indices")
