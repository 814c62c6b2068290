"""Converters of normalizations with all their outputs, over any axes and in any dtype."""

from __future__ import annotations

from tvm import relax

from tvmconv.network.graph.constants import same_sizes, sizes_of
from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import equal, is_number, product, python_text
from tvmconv.problem.dtypes import NARROW

from ...agreement import with_sizes
from ..node import Node


def layer_normalization(node: Node) -> relax.Expr:
    """Convert LayerNormalization, with the mean and the inverse deviation where they are wanted."""
    x, scale, bias = _of_the_scale(node), node.operands[1], node.operand(2)
    axes, epsilon = _axes(node), node.attributes.get("epsilon", 1e-5)
    wide, dtype = _wide(node, x), str(x.ty.dtype)
    row = (sizes_of(x.ty) or ())[axes[0] :]
    if node.outputs == 1 and all(each is None or same_sizes(each.ty, row) for each in (scale, bias)):
        bias = relax.op.zeros(row, dtype) if bias is None else bias
        scale, bias = (node.builder.cast(each, str(wide.ty.dtype)) for each in (scale, bias))
        return node.builder.cast(relax.op.nn.layer_norm(wide, scale, bias, axes, epsilon), dtype)
    mean = node.emit(relax.op.mean(wide, axes, keepdims=True))
    centered = node.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centered, centered), axes, keepdims=True)
    inverse = node.emit(relax.op.rsqrt(relax.op.add(variance, relax.const(epsilon, wide.ty.dtype))))
    y = relax.op.multiply(node.builder.cast(relax.op.multiply(centered, inverse), dtype), scale)
    y = node.emit(y if bias is None else relax.op.add(y, bias))
    return y if node.outputs == 1 else relax.Tuple([y, mean, inverse][: node.outputs])


def rms_normalization(node: Node) -> relax.Expr:
    """Convert RMSNormalization."""
    x, scale = _of_the_scale(node), node.operands[1]
    wide = _wide(node, x)
    squares = relax.op.mean(relax.op.multiply(wide, wide), _axes(node), keepdims=True)
    epsilon = relax.const(node.attributes.get("epsilon", 1e-5), wide.ty.dtype)
    y = relax.op.multiply(wide, relax.op.rsqrt(relax.op.add(squares, epsilon)))
    return relax.op.multiply(node.builder.cast(y, str(x.ty.dtype)), scale)


def group_normalization(node: Node) -> relax.Expr:
    """Convert GroupNormalization of any rank; scale and bias are for groups before opset 21, for channels since."""
    x, scale, bias = node.operands[:3]
    channels = node.shape_of()[1]
    groups, epsilon = node.attributes["num_groups"], node.attributes.get("epsilon", 1e-5)
    if groups < 1:
        raise Refused(f"its num_groups is {groups}", "a number of at least 1")
    need = f"needs channels that are a multiple of its {groups} groups, not {python_text(channels)}"
    node.require(equal(channels % groups, 0), need)
    for index, name in ((1, "scale"), (2, "bias")):
        numbers = groups if node.opset < 21 else channels
        need = f"needs a {name} of {python_text(numbers)} numbers, not {python_text(product(node.shape_of(index)))}"
        node.require(equal(product(node.shape_of(index)), numbers), need)
    wide = _wide(node, x)
    scale, bias = (node.builder.cast(each, str(wide.ty.dtype)) for each in (scale, bias))
    if node.opset < 21:
        in_group = node.facts.simplified(channels // groups)
        columns = [node.emit(relax.op.reshape(each, [groups, 1])) for each in (scale, bias)]
        spread = [node.emit(relax.op.broadcast_to(column, [groups, in_group])) for column in columns]
        scale, bias = (node.emit(relax.op.reshape(each, [channels])) for each in spread)
    y = relax.op.nn.group_norm(wide, scale, bias, groups, 1, list(range(2, x.ty.ndim)), epsilon)
    return node.builder.cast(y, str(x.ty.dtype))


def _of_the_scale(node: Node) -> relax.Expr:
    """Return x with the last sizes of the scale, which it has to have; 1 is repeated."""
    x, scale = node.operands[:2]
    sizes = reversed(sizes_of(scale.ty) or ())
    last = int(x.ty.ndim) - 1
    return with_sizes(
        node.builder, x, {last - index: size for index, size in enumerate(sizes) if not is_number(size, 1)}
    )


def _axes(node: Node) -> list[int]:
    """Return the axes from the attribute `axis` on to the last."""
    rank = node.operands[0].ty.ndim
    return list(range(node.attributes.get("axis", -1) % rank, rank))


def _wide(node: Node, x: relax.Expr) -> relax.Expr:
    """Return x in float32 at least, unless stash_type says otherwise."""
    narrow = str(x.ty.dtype) in NARROW
    return node.builder.cast(x, "float32") if narrow and node.attributes.get("stash_type", 1) == 1 else x
