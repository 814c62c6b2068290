"""ONNX's Einsum: of two operands a product of matrices, which kernels compute, and others by TVM's loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, topi

from tvmconv.network.graph.constants import sizes_of
from tvmconv.network.sizes.facts import Size, is_number, product

from ...agreement import with_sizes
from ..node import Node


@dataclass(frozen=True)
class _Product:
    """The labels of the axes of a product of two operands, a letter each."""

    batch: str
    """The labels of both operands and of the result."""
    summed: str
    """The labels of both operands alone."""
    rows: str
    """The labels of the first operand and of the result."""
    columns: str
    """The labels of the second operand and of the result."""
    result: str


def einsum(node: Node) -> relax.Expr:
    """Convert Einsum."""
    equation = node.text("equation", "").replace(" ", "")
    terms, found = equation.partition("->")[0].split(","), _product(equation)
    sizes = _sizes(node, terms)
    if sizes is None:
        return node.builder.emit_te(topi.einsum, equation, *node.operands, primfunc_name_hint="einsum")
    operands = [
        with_sizes(node.builder, operand, {axis: sizes[label] for axis, label in enumerate(term)})
        for term, operand in zip(terms, node.operands, strict=True)
    ]
    if found is None:
        return node.builder.emit_te(topi.einsum, equation, *operands, primfunc_name_hint="einsum")
    x, y = (
        _matrix(node, operand, term, found.batch, axes, sizes)
        for operand, term, axes in zip(
            operands, terms, ((found.rows, found.summed), (found.summed, found.columns)), strict=True
        )
    )
    labels = found.batch + found.rows + found.columns
    z = node.builder.reshaped(node.emit(relax.op.matmul(x, y)), [sizes[label] for label in labels])
    return _permuted(node, z, labels, found.result)


def _product(equation: str) -> _Product | None:
    """Return the product that an equation is, such as "bct,bcs->bts"; None for one that is none."""
    operands, arrow, result = equation.partition("->")
    left, comma, right = operands.partition(",")
    if not (arrow and comma and (left + right + result).isalpha()):
        return None
    if any(len(set(labels)) < len(labels) for labels in (left, right, result)):
        return None
    both = [label for label in left if label in right]
    rows, columns = ("".join(label for label in each if label not in both) for each in (left, right))
    batch, summed = ("".join(label for label in both if (label in result) == kept) for kept in (True, False))
    is_whole = set(result) == {*batch, *rows, *columns}
    return _Product(batch, summed, rows, columns, result) if is_whole else None


def _sizes(node: Node, terms: Sequence[str]) -> dict[str, Size] | None:
    """Return the size of each label; None where one is of axes that are repeated, or that no label stands for."""
    sizes: dict[str, Size] = {}
    for term, operand in zip(terms, node.operands, strict=True):
        shape = sizes_of(operand.ty)
        if shape is None or len(shape) != len(term) or not term.isalpha() or len(set(term)) < len(term):
            return None
        for label, size in zip(term, shape, strict=True):
            if is_number(sizes.setdefault(label, size), 1) != is_number(size, 1):
                return None
    return sizes


def _matrix(
    node: Node, x: relax.Expr, term: str, batch: str, axes: tuple[str, str], sizes: dict[str, Size]
) -> relax.Expr:
    """Return an operand as matrices, whose two axes have the labels `axes`, some or none each, for each of a batch."""
    ordered = _permuted(node, x, term, batch + "".join(axes))
    shape = [*(sizes[label] for label in batch), *(product(sizes[label] for label in each) for each in axes)]
    return node.builder.reshaped(ordered, shape)


def _permuted(node: Node, x: relax.Expr, labels: str, order: str) -> relax.Expr:
    return x if labels == order else node.emit(relax.op.permute_dims(x, [labels.index(label) for label in order]))
