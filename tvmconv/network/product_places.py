"""Where factors and results of products lie in other tensors, so that kernels read and store them there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tvm import relax

from ..lowering import Place
from ..workload import MAX_ELEMENTS
from .constants import static_shape
from .graph import Block, calls
from .views import MOVES, Steps, View, in_a_row, joined, reshaped, view_of


class Placed(NamedTuple):
    """The operands of a product that lie in other tensors, by their names in its convolution."""

    places: dict[str, Place]
    tensors: dict[str, relax.Expr]
    """The tensors that factors lie in."""
    output: relax.Var
    """The variable that the kernel computes: the result, or what moves make of it."""


def placed(
    factors: tuple[relax.Expr, relax.Expr], output: relax.Var, shape: tuple[int, int, int], aligned: int, block: Block
) -> Placed:
    """Return which operands of a product lie in other tensors, at places that are multiples of so many elements.

    The shape is that of a matrix of each product: the rows and terms of the first factor, and the columns of the second
    one, as the kernel reads them. The second factor is read by its columns, the terms of which have to be side by side.
    """
    rows, terms, columns = shape
    places, tensors = dict[str, Place](), dict[str, relax.Expr]()
    for name, factor, (along, inner), size in zip("xw", factors, ((-2, -1), (-1, -2)), (rows, columns), strict=True):
        view = view_of(factor, block)
        if view.source.same_as(factor) or prod(count for count, _ in view.axes[inner]) != terms:
            continue
        others = [step for axis in view.axes[:-2] for step in axis]
        elements = prod(static_shape(view.source.ty) or ())
        place = _place(elements, view.first, others, view.axes[along], view.axes[inner], aligned)
        if place is not None and place.rows <= size:
            places[name], tensors[name] = place, view.source
    moved = _moved_to(output, block)
    if not moved.same_as(output) and (place := _stored(view_of(moved, block), output, rows, columns, aligned)):
        return Placed({**places, "output": place}, tensors, moved)
    return Placed(places, tensors, output)


def _place(
    elements: int, first: int, batch: Sequence[tuple[int, int]], rows: Steps, row: Steps, aligned: int
) -> Place | None:
    """Return the place of rows; None where copies of so many elements do not fit, or rows are one behind the other."""
    outer = joined(batch)
    if len(rows) != 1 or len(row) != 1 or row[0][1] != 1 or not outer or elements > MAX_ELEMENTS:
        return None
    if joined([*outer, *rows, *row]) == ((elements, 1),):
        return None
    ((count, step),) = rows
    if any(number % aligned for number in (first, step, *(each for _, each in outer))):
        return None
    return Place(elements, first, outer, step, count)


def _moved_to(var: relax.Var, block: Block) -> relax.Var:
    """Return what moves alone make of a variable that nothing else reads."""
    reader = block.only_reader(var)
    while reader is not None and block.is_inner(reader) and calls(block.values[reader], *MOVES):
        var, reader = reader, block.only_reader(reader)
    return var


def _stored(view: View, output: relax.Var, rows: int, columns: int, aligned: int) -> Place | None:
    """Return the place of a result in what moves make of it, which is a view of it; None where it has none."""
    elements = prod(static_shape(output.ty) or ())
    steps = [step for axis in view.axes for step in axis]
    sizes = [size for size, _ in steps]
    if not view.source.same_as(output) or prod(sizes) != elements:
        return None
    in_order = sorted(zip(steps, in_a_row(sizes), strict=True), key=lambda pair: -pair[0][1])
    if [step for step, _ in in_order] != in_a_row([size for (size, _), _ in in_order]):
        return None
    axes = reshaped([(step,) for _, step in in_order], (elements // (rows * columns), rows, columns))
    return None if axes is None else _place(elements, 0, *axes, aligned)
