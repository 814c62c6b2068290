"""Products whose kernels read factors, and write results, inside larger tensors, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tvm import relax

from tvmconv.problem.layout import StridedRows
from tvmconv.problem.workload import MAX_ELEMENTS

from ...graph.constants import static_shape
from ...graph.graph import Block
from ...graph.views import AxisStrides, View, contiguous_strides, joined, last_view_of, reshaped, view_of
from .product import Product


class InLargerTensors(NamedTuple):
    """The operands of a product that lie in larger tensors, by their names in its convolution."""

    positions: dict[str, StridedRows]
    tensors: dict[str, relax.Expr]
    """The tensors that factors lie in."""
    output: relax.Var
    """The variable that the kernel computes: the result, or the variable that moves make of it."""


def in_larger_tensors(
    factors: tuple[relax.Expr, relax.Expr],
    output: relax.Var,
    product: Product,
    padded: tuple[int, int],
    alignment: int,
    block: Block,
) -> InLargerTensors:
    """Return which operands of a product lie in larger tensors, at offsets that are multiples of `alignment` elements.

    A kernel reads rows of `padded[0]` terms, and stores rows of `padded[1]` columns. Of the second factor it reads
    columns: these have to be contiguous in memory.
    """
    positions, tensors = dict[str, StridedRows](), dict[str, relax.Expr]()
    axes = (-2, -1, product.rows), (-1, -2, product.columns)
    for name, factor, (outer_axis, inner_axis, count) in zip("xw", factors, axes, strict=True):
        view = view_of(factor, block)
        batch = [step for axis in view.axes[:-2] for step in axis]
        elements = prod(static_shape(view.source.ty) or ())
        position = _position_if_apart(
            elements, view.first, batch, view.axes[outer_axis], view.axes[inner_axis], alignment
        )
        if position is None or view.source.same_as(factor) or position.rows != count or product.terms != padded[0]:
            continue
        if prod(size for size, _ in position.batch) == product.batch:
            positions[name], tensors[name] = position, view.source
    last = last_view_of(output, block)
    if not last.same_as(output) and product.columns == padded[1]:
        position = position_of_result(view_of(last, block), output, product, alignment)
        if position is not None:
            return InLargerTensors({**positions, "output": position}, tensors, last)
    return InLargerTensors(positions, tensors, output)


def _position_if_apart(
    elements: int, first: int, batch: Sequence[tuple[int, int]], rows: AxisStrides, row: AxisStrides, alignment: int
) -> StridedRows | None:
    """Return rows of several matrices; None for a single matrix or row, or where all are contiguous."""
    if not rows or not joined(batch) or joined([*batch, *rows, *row]) == ((elements, 1),):
        return None
    return position_of_rows(elements, first, batch, rows, row, alignment)


def position_of_rows(
    elements: int, first: int, batch: Sequence[tuple[int, int]], rows: AxisStrides, row: AxisStrides, alignment: int
) -> StridedRows | None:
    """Return contiguous rows in a tensor; None for others, and unless offsets divide by `alignment`."""
    outer = joined(batch) or ((1, 0),)
    if len(rows) > 1 or len(row) != 1 or row[0][1] != 1 or elements > MAX_ELEMENTS:
        return None
    ((count, step),) = rows or ((1, 0),)
    if any(number % alignment for number in (first, step, *(each for _, each in outer))):
        return None
    return StridedRows(elements, first, outer, step, count)


def position_of_result(view: View, output: relax.Var, product: Product, alignment: int) -> StridedRows | None:
    """Return a result's rows in the tensor that moves make of it, `view`; None if its strides fit no `StridedRows`."""
    elements = product.batch * product.rows * product.columns
    steps = [step for axis in view.axes for step in axis]
    sizes = [size for size, _ in steps]
    if not view.source.same_as(output) or prod(sizes) != elements:
        return None
    in_order = sorted(zip(steps, contiguous_strides(sizes), strict=True), key=lambda pair: -pair[0][1])
    if [step for step, _ in in_order] != contiguous_strides([size for (size, _), _ in in_order]):
        return None
    axes = reshaped([(step,) for _, step in in_order], (product.batch, product.rows, product.columns))
    if axes is None:
        return None
    batch, rows, row = axes
    return _position_if_apart(elements, 0, batch, rows, row, alignment)
