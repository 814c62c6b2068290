"""Converters of pooling, whose windows begin and end as in ONNX."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size, SizeFacts, as_expr, product, python_text

from ...shared.pooling import Sliding, average_pool, flat_index, indices_of_maxima, max_pool
from ..node import Node
from .windows import SAME, read_windows, require_room, same_padding


def maximum_pool(node: Node) -> relax.Expr:
    """Convert MaxPool, with the indices of the largest elements where they are wanted."""
    x, windows = node.operands[0], _windows(node)
    y = node.emit(max_pool(node.builder, x, windows))
    if node.outputs == 1:
        return y
    indices = indices_of_maxima(node.builder, x, y, windows)
    by_columns = node.attributes.get("storage_order", 0) == 1
    return relax.Tuple([y, _through_all(node, x, indices, by_columns)])


def mean_pool(node: Node) -> relax.Expr:
    """Convert AveragePool."""
    return average_pool(
        node.builder, node.operands[0], _windows(node), bool(node.attributes.get("count_include_pad", 0))
    )


def lp_pool(node: Node) -> relax.Expr:
    """Convert LpPool: the p-th root of sums of p-th powers."""
    x, p = node.operands[0], node.attributes.get("p", 2)
    powers = node.emit(relax.op.power(relax.op.abs(x), relax.const(p, x.ty.dtype)))
    total = average_pool(node.builder, powers, _windows(node), divisor=1)
    return relax.op.power(total, relax.const(1 / p, x.ty.dtype))


def _windows(node: Node) -> list[Sliding]:
    """Return the windows of a pooling node, one for each spatial axis."""
    kernel, x = node.attributes.get("kernel_shape"), node.operand(0)
    if kernel is None or x is None:
        raise Refused(f"it has no {'input' if x is None else 'kernel_shape'}", "a model with one")
    sizes = node.shape_of()[2:]
    if len(sizes) != len(kernel):
        raise Refused(f"its kernel_shape has {len(kernel)} numbers for {len(sizes)} axes", "one for each")
    if len(sizes) > 3:
        raise Refused(f"windows with {len(sizes)} axes are not supported")
    read = read_windows(node, kernel)
    if any(width >= size for width, size in zip((*read.before, *read.after), (*kernel, *kernel), strict=True)):
        raise Refused(f"its pads {[*read.before, *read.after]} are not below its kernel_shape {list(kernel)}", "less")
    round_up = node.attributes.get("ceil_mode", 0) == 1
    facts, windows = node.facts, []
    for axis, (inputs, extent, stride) in enumerate(zip(sizes, read.extents, read.strides, strict=True)):
        before: Size = read.before[axis]
        after: Size = read.after[axis]
        node.require(as_expr(inputs) >= 1, f"needs elements along axis {axis + 2}, which has {python_text(inputs)}")
        if read.auto_pad in SAME:
            before, total = same_padding(facts, inputs, extent, stride, read.auto_pad == "SAME_UPPER")
            after = facts.larger(facts.simplified(total - inputs - before), 0)
            outputs = facts.simplified((inputs - 1) // stride + 1)
        else:
            outputs = _outputs(facts, inputs, before, after, extent, stride, round_up)
            require_room(node, outputs >= 1, extent, inputs)
        windows.append(
            Sliding(inputs, outputs, kernel[axis], stride, read.dilations[axis], before, after, rounds_up=round_up)
        )
    return windows


def _outputs(facts: SizeFacts, inputs: Size, before: int, after: int, extent: int, stride: int, round_up: bool) -> Size:
    """Return the number of outputs along an axis; rounded up, no window begins behind the input."""
    if not round_up:
        return facts.simplified((inputs + before + after - extent) // stride + 1)
    return facts.simplified((inputs + before - 1 + min(after - extent + stride, 0)) // stride + 1)


def _through_all(node: Node, x: relax.Expr, indices: relax.Expr, by_columns: bool) -> relax.Expr:
    """Return indices within planes of x as those in all of x; `by_columns` counts along the first axis first."""

    def compute(indices: te.Tensor, *sizes: Any) -> te.Tensor:
        channels, *plane = map(as_expr, sizes)

        def index(*at: tirx.Var) -> tirx.Expr:
            flat = indices(*at)
            if by_columns:
                reversed_index = []
                for size in reversed(plane):
                    reversed_index.append(flat % size)
                    flat = flat // size
                flat = flat_index(reversed_index, plane[::-1])
            return (at[0] * channels + at[1]) * product(plane) + flat

        return te.compute(indices.shape, index, "index", tag=topi.tag.INJECTIVE)

    return node.builder.emit_te(compute, indices, *node.shape_of()[1:], primfunc_name_hint="max_pool_indices")
