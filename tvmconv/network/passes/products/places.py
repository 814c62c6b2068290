"""Factors and results of products that are parts of larger tensors, which kernels read and store without copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tvm import relax

from tvmconv.problem.layout import StridedRows
from tvmconv.problem.workload import MAX_ELEMENTS

from ...graph.constants import static_shape
from ...graph.graph import Block
from ...graph.views import Steps, View, in_a_row, joined, moved_to, reshaped, view_of
from .product import Product


class Placed(NamedTuple):
    """The operands of a product that lie in larger tensors, by their names in its convolution."""

    places: dict[str, StridedRows]
    tensors: dict[str, relax.Expr]
    """The tensors that factors lie in."""
    output: relax.Var
    """The variable that the kernel computes: the result, or the variable that moves make of it."""


def placed(
    factors: tuple[relax.Expr, relax.Expr],
    output: relax.Var,
    product: Product,
    padded: tuple[int, int],
    aligned: int,
    block: Block,
) -> Placed:
    """Return which operands of a product lie in larger tensors, at offsets that are multiples of `aligned` elements.

    A kernel reads rows of `padded[0]` terms, and stores rows of `padded[1]` columns. Of the second factor it reads
    columns: these have to be contiguous in memory.
    """
    places, tensors = dict[str, StridedRows](), dict[str, relax.Expr]()
    axes = (-2, -1, product.rows), (-1, -2, product.columns)
    for name, factor, (along, inner, count) in zip("xw", factors, axes, strict=True):
        view = view_of(factor, block)
        others = [step for axis in view.axes[:-2] for step in axis]
        elements = prod(static_shape(view.source.ty) or ())
        place = _place(elements, view.first, others, view.axes[along], view.axes[inner], aligned)
        if place is None or view.source.same_as(factor) or place.rows != count or product.terms != padded[0]:
            continue
        if prod(size for size, _ in place.batch) == product.batch:
            places[name], tensors[name] = place, view.source
    moved = moved_to(output, block)
    if not moved.same_as(output) and product.columns == padded[1]:
        place = stored(view_of(moved, block), output, product, aligned)
        if place is not None:
            return Placed({**places, "output": place}, tensors, moved)
    return Placed(places, tensors, output)


def _place(
    elements: int, first: int, batch: Sequence[tuple[int, int]], rows: Steps, row: Steps, aligned: int
) -> StridedRows | None:
    """Return rows of several matrices; None for a single matrix or row, or where all are contiguous."""
    if not rows or not joined(batch) or joined([*batch, *rows, *row]) == ((elements, 1),):
        return None
    return place_of(elements, first, batch, rows, row, aligned)


def place_of(
    elements: int, first: int, batch: Sequence[tuple[int, int]], rows: Steps, row: Steps, aligned: int
) -> StridedRows | None:
    """Return rows in a tensor; None for rows that are not contiguous, or not `aligned`."""
    outer = joined(batch) or ((1, 0),)
    if len(rows) > 1 or len(row) != 1 or row[0][1] != 1 or elements > MAX_ELEMENTS:
        return None
    ((count, step),) = rows or ((1, 0),)
    if any(number % aligned for number in (first, step, *(each for _, each in outer))):
        return None
    return StridedRows(elements, first, outer, step, count)


def stored(view: View, output: relax.Var, product: Product, aligned: int) -> StridedRows | None:
    """Return a result's rows in the tensor that moves make of it, `view`; None if its strides fit no `StridedRows`."""
    elements = product.batch * product.rows * product.columns
    steps = [step for axis in view.axes for step in axis]
    sizes = [size for size, _ in steps]
    if not view.source.same_as(output) or prod(sizes) != elements:
        return None
    in_order = sorted(zip(steps, in_a_row(sizes), strict=True), key=lambda pair: -pair[0][1])
    if [step for step, _ in in_order] != in_a_row([size for (size, _), _ in in_order]):
        return None
    axes = reshaped([(step,) for _, step in in_order], (product.batch, product.rows, product.columns))
    if axes is None:
        return None
    batch, rows, row = axes
    return _place(elements, 0, batch, rows, row, aligned)
