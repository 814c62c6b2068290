"""Tensors whose elements are those of another tensor, in another order of axes or a slice: views with strides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod
from typing import NamedTuple

from tvm import relax, tirx

from .constants import static_shape
from .graph import Block, call_of, calls

AxisStrides = tuple[tuple[int, int], ...]
"""An axis: sizes, the outermost first, each with its stride, in elements of memory."""

RESHAPING = ("expand_dims", "flatten", "reshape", "squeeze")
"""The operators that leave elements in their order."""

MOVES = (*RESHAPING, "permute_dims")
"""The operators of one operand whose results have all of its elements."""


class View(NamedTuple):
    """A tensor as a strided view of another one."""

    source: relax.Var
    """The tensor whose memory has the elements."""
    first: int
    """The offset of the first element in it, in elements."""
    axes: tuple[AxisStrides, ...]


def view_of(var: relax.Var, block: Block) -> View:
    """Return a variable as a view of the farthest tensor before it from which moves and slices alone make it."""
    value, shape = block.values.get(var), static_shape(var.ty)
    assert shape is not None
    move = call_of(value, *MOVES, "strided_slice")
    if move is not None and isinstance(operand := move.args[0], relax.Var) and static_shape(operand.ty) is not None:
        view = _view_of_move(move, view_of(operand, block), shape)
        if view is not None:
            return view
    return View(var, 0, tuple(joined([step]) for step in contiguous_strides(shape)))


def last_view_of(var: relax.Var, block: Block) -> relax.Var:
    """Return the last variable that moves alone make of a variable, if each has the next one as its only reader."""
    reader = block.only_reader(var)
    while reader is not None and block.is_inner(reader) and calls(block.values[reader], *MOVES):
        var, reader = reader, block.only_reader(reader)
    return var


def contiguous_strides(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the size and the stride of each axis of a contiguous tensor."""
    return [(size, prod(shape[number + 1 :])) for number, size in enumerate(shape)]


def _view_of_move(value: relax.Call, view: View, shape: Sequence[int]) -> View | None:
    """Return the view that a move or a slice, with a result of a shape, makes of a view; None where it makes none."""
    if calls(value, *RESHAPING):
        new = reshaped(view.axes, shape)
        return None if new is None else view._replace(axes=new)
    if (permuted := call_of(value, "permute_dims")) is not None:
        order = permuted.attrs.axes
        order = reversed(range(len(shape))) if order is None else order
        return view._replace(axes=tuple(view.axes[int(axis)] for axis in order))
    if (sliced := call_of(value, "strided_slice")) is None or len(sliced.args) > 5:
        return None
    operands = sliced.args[1:]
    if not all(isinstance(each, relax.Tuple) for each in operands):
        return None
    if not all(isinstance(number, tirx.IntImm) for each in operands for number in each.fields):
        return None  # bounds that are known only when the model runs
    numbers = [[int(number) for number in each.fields] for each in operands]
    sliced_axes, begins = numbers[0], numbers[1]
    if any(step != 1 for step in (numbers[3] if len(numbers) > 3 else [])):
        return None
    first, axes = view.first, list(view.axes)
    for axis, begin in zip(sliced_axes, begins, strict=True):
        if len(axes[axis]) != 1:
            return None
        ((size, step),) = axes[axis]
        first += min(max(begin + size if begin < 0 else begin, 0), size) * step
        axes[axis] = joined([(shape[axis], step)])
    return View(view.source, first, tuple(axes))


def reshaped(axes: Sequence[AxisStrides], shape: Sequence[int]) -> tuple[AxisStrides, ...] | None:
    """Return the axes of a view in another shape; None where the sizes of one are no products of the other's parts."""
    left = list(joined(step for axis in axes for step in axis))
    found: list[AxisStrides] = []
    for rest_of_size in reversed(shape):
        strides: list[tuple[int, int]] = []
        while rest_of_size > 1:
            size, step = left.pop()
            common = gcd(size, rest_of_size)
            if common not in (size, rest_of_size):
                return None
            if common < size:
                left.append((size // common, step * common))
            strides.insert(0, (common, step))
            rest_of_size //= common
        found.insert(0, joined(strides))
    return tuple(found)


def joined(steps: Iterable[tuple[int, int]]) -> AxisStrides:
    """Return an axis with contiguous steps joined to one step, and without steps of size 1."""
    found: list[tuple[int, int]] = []
    for size, step in steps:
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return tuple(found)
