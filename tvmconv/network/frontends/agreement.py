"""Sizes that have to be equal when the model runs, though their expressions differ: half of a height, doubled again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from ..graph.constants import sizes_of
from ..sizes.facts import Size, as_expr, equal, is_number, python_text
from .builder import ImportBuilder, gathered

NAME = "in_agreement"
"""The beginning of the names of the functions that give a tensor the sizes of another."""


@dataclass(frozen=True)
class _Axis:
    """An axis of a tensor: its size, and the size that it gets to agree with other tensors."""

    size: Size
    target: Size
    may_repeat: bool = False
    """True if the size may be 1 in a call; its one element is then repeated."""


def joined(builder: ImportBuilder, tensors: Sequence[relax.Expr], axis: int) -> list[relax.Expr]:
    """Return tensors to be joined along an axis with the same expressions for all other sizes, which have to be equal.

    A function that copies element by element, and is fused with others, gives a tensor the sizes of another. (TVM 0.27
    crashes on its own `match_cast`, in ConvertToDataflow and in FuseTIR.)

    Before: `x: (n, 8, h // 2 * 2)`, `y: (n, 8, h)`. After: `x = R.call_tir(in_agreement, (x,))`, of y's shape.
    """
    shapes = _known_shapes(tensors)
    if shapes is None or len({len(shape) for shape in shapes}) != 1 or not shapes[0]:
        return list(tensors)
    axis %= len(shapes[0])
    columns = [list(sizes) for sizes in zip(*shapes, strict=True)]
    for index, sizes in enumerate(columns):
        if index != axis:
            target = min(sizes, key=_length)
            for size in sizes:
                need = f"needs axes {index} of one size, not {python_text(size)} and {python_text(target)}"
                builder.require(equal(size, target), need)
            columns[index] = [target] * len(sizes)
    return [
        _with_sizes(builder, tensor, [_Axis(size, target) for size, target in zip(shape, targets, strict=True)])
        for tensor, shape, targets in zip(tensors, shapes, zip(*columns, strict=True), strict=True)
    ]


def broadcastable(builder: ImportBuilder, tensors: Sequence[relax.Expr], kept: int = 0) -> list[relax.Expr]:
    """Return tensors whose shapes Relax can broadcast to one, which it cannot where sizes are different expressions.

    Sizes of one axis are equal, or 1, and then repeated. Of two open sizes the one with the shorter expression is the
    result's; the other one is equal to it, or 1, in each call. The `kept` last axes stay as they are.

    Before: `x: (n, 8, h // 2 * 2)`, `y: (8, h)`, `z: (n, 8, 80)`. After: x and y have the shapes (n, 8, 80), (8, 80).
    """
    shapes = _known_shapes(tensors)
    if shapes is None:
        return list(tensors)
    targets: dict[int, Size] = {}
    for shape in shapes:  # axes are counted from the last one, as in broadcasting
        for index, size in enumerate(reversed(shape)):
            if index >= kept and (index not in targets or _rank(size) < _rank(targets[index])):
                targets[index] = size
    brought = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        axes = []
        for index, size in reversed(list(enumerate(reversed(shape)))):
            target = targets.get(index, size)
            axes.append(_Axis(size, size) if isinstance(size, int) else _agreed(builder, size, target))
        brought.append(_with_sizes(builder, tensor, axes))
    return brought


def with_sizes(builder: ImportBuilder, x: relax.Expr, sizes: Mapping[int, Size]) -> relax.Expr:
    """Return x with these sizes of axes, which it has to have in each call; x itself where its shape is unknown.

    Before: `x: (n, c, h // 2)`, `{1: 8, 2: 4}`. After: `x: (n, 8, 4)`, and calls require c == 8 and h // 2 == 4.
    """
    shapes = _known_shapes([x])
    if shapes is None:
        return x
    axes = [_Axis(size, sizes.get(index, size)) for index, size in enumerate(shapes[0])]
    for index, axis in enumerate(axes):
        need = f"needs an axis {index} of {python_text(axis.target)}, not {python_text(axis.size)}"
        builder.require(equal(axis.size, axis.target), need)
    return _with_sizes(builder, x, axes)


def _agreed(builder: ImportBuilder, size: Size, target: Size) -> _Axis:
    """Return the axis of an open size, and require for the node that the size is the target, or 1."""
    facts = builder.facts
    if facts.are_equal(size, target):
        return _Axis(size, target)
    reason = f"needs sizes that are equal, or 1, not {python_text(size)} and {python_text(target)}"
    is_one = facts.proves(tirx.EQ(as_expr(size), as_expr(1)))
    if is_one is True:
        return _Axis(size, size)
    same = tirx.EQ(as_expr(size), as_expr(target))
    builder.require(same if is_one is False else tirx.Or(tirx.EQ(as_expr(size), as_expr(1)), same), reason)
    return _Axis(size, target, may_repeat=is_one is None)


def _known_shapes(tensors: Sequence[relax.Expr]) -> list[tuple[Size, ...]] | None:
    shapes = [sizes_of(each.ty) if isinstance(each.ty, relax.TensorType) else None for each in tensors]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None


def _with_sizes(builder: ImportBuilder, tensor: relax.Expr, axes: Sequence[_Axis]) -> relax.Expr:
    """Return a tensor with other expressions for its sizes, the tensor itself where they are the same."""
    if all(_is_same(axis) for axis in axes):
        return tensor

    def source(at: Sequence[tirx.Expr], sizes: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        each = zip(at, sizes, axes, strict=True)
        return [tirx.if_then_else(size == 1, 0, i) if axis.may_repeat else i for i, size, axis in each]

    return gathered(builder, tensor, [axis.target for axis in axes], source, NAME)


def _is_same(axis: _Axis) -> bool:
    if isinstance(axis.size, int) or isinstance(axis.target, int):
        return isinstance(axis.size, int)
    return axis.size.same_as(axis.target) or str(axis.size) == str(axis.target)


def _length(size: Size) -> int:
    """Order numbers before expressions, and short expressions before long ones."""
    return 0 if isinstance(size, int) else len(str(size))


def _rank(size: Size) -> tuple[bool, int]:
    """Order the sizes that a broadcast may have: numbers but 1, short expressions, long ones, and 1."""
    return (is_number(size, 1), _length(size))
