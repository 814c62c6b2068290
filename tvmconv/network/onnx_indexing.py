"""Converters of operators with indices: `index_ranges` brings these into range, so nothing is done to them here."""

from __future__ import annotations

from tvm import relax

from .faults import Refused
from .onnx_node import Node


def gather(node: Node) -> relax.Expr:
    """Convert Gather."""
    x, indices = node.operands[:2]
    axis = node.attributes.get("axis", 0)
    if isinstance(x, relax.ShapeExpr):
        position = node.constant(1, "indices") if not isinstance(indices, relax.ShapeExpr) else None
        if position is not None and position.ndim == 0:
            return relax.prim_value(x[int(position)])
    x, indices = _tensor(node, x), _tensor(node, indices)
    return relax.op.take(x, indices, _axis(axis, x.ty.ndim))


def _tensor(node: Node, operand: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.shape_to_tensor(operand)) if isinstance(operand, relax.ShapeExpr) else operand


def gather_elements(node: Node) -> relax.Expr:
    """Convert GatherElements."""
    x, indices = node.operands[:2]
    return relax.op.gather_elements(x, indices, _axis(node.attributes.get("axis", 0), x.ty.ndim))


def gather_nd(node: Node) -> relax.Expr:
    """Convert GatherND."""
    return relax.op.gather_nd(*node.operands[:2], node.attributes.get("batch_dims", 0))


def scatter_elements(node: Node) -> relax.Expr:
    """Convert ScatterElements and its older name, Scatter."""
    x, indices, updates = node.operands[:3]
    axis = _axis(node.attributes.get("axis", 0), x.ty.ndim)
    return relax.op.scatter_elements(x, indices, updates, axis, _reduction(node))


def scatter_nd(node: Node) -> relax.Expr:
    """Convert ScatterND."""
    return relax.op.scatter_nd(*node.operands[:3], _reduction(node))


def _reduction(node: Node) -> str:
    """Return Relax's name of the function that combines an element with its update."""
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add", "mul", "min", "max"):
        raise Refused(f"its reduction {reduction!r} is unknown", "one of none, add, mul, min and max")
    return "update" if reduction == "none" else reduction


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Refused(f"its axis {axis} is none of an operand of {rank} axes", f"an axis from {-rank} to {rank - 1}")
    return axis % rank
