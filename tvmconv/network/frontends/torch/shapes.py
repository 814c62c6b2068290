"""Operators of torch that move elements, for sizes that are known only when the model runs.

Each function takes the builder, a tensor of Relax, the shape that torch gives the result, and the node's arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tvm import relax, tirx

from ...graph.constants import sizes_of
from ...sizes.facts import Size, as_expr, choice
from ..builder import ImportBuilder, gathered, tiled
from ..shared.padding import shifted

Shape: TypeAlias = Sequence[Size]


def size(x: relax.Expr, axis: int) -> Size:
    """Return the size of a tensor along an axis; raise `ValueError` where its rank is unknown."""
    sizes = sizes_of(x.ty)
    if sizes is None:
        raise ValueError("the shape of its input is known only when the model runs")
    return sizes[axis]


def reshape(builder: ImportBuilder, x: relax.Expr, shape: Shape, *_: Any) -> relax.Expr:
    """Return x in a shape; x itself where it has that already."""
    return builder.reshaped(x, shape)


def expand(builder: ImportBuilder, x: relax.Expr, shape: Shape, *_: Any) -> relax.Expr:
    """Return x repeated along axes of size 1 and along new axes in front; x itself where it has the shape already."""
    before = sizes_of(x.ty)
    if before is None:
        return relax.op.broadcast_to(x, list(shape))
    behind = shape[len(shape) - len(before) :]
    if len(before) == len(shape) and all(map(builder.facts.are_equal, before, behind)):
        return x
    if all(one == 1 or builder.facts.are_equal(one, other) for one, other in zip(before, behind, strict=True)):
        return relax.op.broadcast_to(x, list(shape))
    new = len(shape) - len(before)
    repeats = [one == 1 for one in before]

    def source(at: Sequence[tirx.Expr], _: object) -> list[tirx.Expr]:
        return [tirx.const(0, "int64") if one else i for one, i in zip(repeats, at[new:], strict=True)]

    return gathered(builder, x, shape, source, "expand")


def cut(
    builder: ImportBuilder, x: relax.Expr, shape: Shape, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> relax.Expr:
    """Return a slice x[start:end:step] along an axis."""
    axis = dim % x.ty.ndim
    length, start = size(x, axis), 0 if start is None else start
    if builder.facts.are_equal(length, shape[axis]) and step == 1:
        return x
    if all(isinstance(each, int) for each in (length, start, step, shape[axis])):
        assert isinstance(length, int)
        assert isinstance(start, int)
        begin = min(max(start + length, 0) if start < 0 else start, length)
        behind = begin + int(shape[axis]) * step
        return relax.op.strided_slice(x, [axis], [begin], [min(behind, length)], [step])

    def source(at: Sequence[tirx.Expr], _: object, begin: Any, step: Any) -> list[tirx.Expr]:
        return [begin + i * step if j == axis else i for j, i in enumerate(at)]

    return gathered(builder, x, shape, source, "slice", _from_start(builder, start, length), step)


def select(builder: ImportBuilder, x: relax.Expr, shape: Shape, dim: int, index: Any) -> relax.Expr:
    """Return x at one index along an axis, without the axis."""
    axis = dim % x.ty.ndim
    length = size(x, axis)
    position = _from_start(builder, index, length)
    builder.require(as_expr(position) >= 0, f"needs an axis {axis} that has an element {index}")
    builder.require(as_expr(length) > position, f"needs an axis {axis} that has an element {index}")
    if isinstance(position, int):
        part = builder.emit(relax.op.strided_slice(x, [axis], [position], [position + 1], [1]))
        return relax.op.squeeze(part, [axis])
    return gathered(builder, x, shape, lambda at, _, position: [*at[:axis], position, *at[axis:]], "select", position)


def unfold(builder: ImportBuilder, x: relax.Expr, shape: Shape, dim: int, length: int, step: int) -> relax.Expr:
    """Return windows of x along an axis, `step` apart, whose elements are along a new last axis.

    Before: `x` (2, 8). After, with length 4 and step 2 along axis 1: (2, 3, 4).
    """
    axis = dim % max(1, x.ty.ndim)

    def source(at: Sequence[tirx.Expr], _: object, step: Any) -> list[tirx.Expr]:
        return [i * step + at[-1] if j == axis else i for j, i in enumerate(at[:-1])]

    return gathered(builder, x, shape, source, "unfold", step)


def roll(builder: ImportBuilder, x: relax.Expr, shape: Shape, shifts: Any, dims: Any = ()) -> relax.Expr:
    """Return x with its elements moved along axes, those that leave at one end coming in at the other."""
    shifts, dims = ([each] if not isinstance(each, (list, tuple)) else list(each) for each in (shifts, dims))
    if not dims:  # through all elements in a row
        flat = builder.emit(relax.op.reshape(x, [-1]))
        return relax.op.reshape(builder.emit(roll(builder, flat, list(flat.ty.shape), shifts, [0])), list(shape))
    axes = [dim % x.ty.ndim for dim in dims]

    def source(at: Sequence[tirx.Expr], sizes: Sequence[tirx.Expr], *shifts: Any) -> list[tirx.Expr]:
        indices = list(at)
        for axis, shift in zip(axes, shifts, strict=True):
            indices[axis] = tirx.floormod(indices[axis] - shift, sizes[axis])
        return indices

    return gathered(builder, x, shape, source, "roll", *shifts)


def repeat(builder: ImportBuilder, x: relax.Expr, shape: Shape, times: Sequence[Any]) -> relax.Expr:
    """Return x repeated along each axis, and along new axes in front."""
    return tiled(builder, x, times, shape)


def pad(builder: ImportBuilder, x: relax.Expr, shape: Shape, widths: Sequence[Any], value: Any = 0) -> relax.Expr:
    """Return x with a value around it: widths in front and behind, those of the last axis first; some cut off."""
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (x.ty.ndim - len(pairs)) + pairs
    value = 0 if value is None else value
    if all(isinstance(width, int) and width >= 0 for pair in pairs for width in pair):
        return relax.op.nn.pad(x, [width for pair in pairs for width in pair], "constant", float(value))
    before = [width for width, _ in pairs]
    return shifted(builder, x, before, shape, value=relax.const(value, x.ty.dtype))


def split(builder: ImportBuilder, x: relax.Expr, shapes: Sequence[Shape], sections: Any, dim: int = 0) -> relax.Expr:
    """Return the parts of x along an axis, of these shapes."""
    axis, begin, parts = dim % x.ty.ndim, 0, []
    for shape in shapes:
        length = shape[axis]
        parts.append(cut(builder, x, shape, axis, begin, begin + length))
        begin = builder.facts.simplified(begin + length)
    return relax.Tuple([builder.emit(part) if isinstance(part, relax.Call) else part for part in parts])


def _from_start(builder: ImportBuilder, index: Any, length: Size) -> Any:
    """Return an index from the start; one before the start is 0."""
    if isinstance(index, int):
        if index >= 0:
            return index
        return builder.facts.simplified(tirx.max(length + index, 0)) if not isinstance(length, int) else length + index
    if builder.facts.proves(index >= 0) is True:
        return index
    return builder.facts.simplified(choice(index < 0, tirx.max(index + length, 0), index))
