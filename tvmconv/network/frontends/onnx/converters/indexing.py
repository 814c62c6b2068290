"""Converters of operators with indices: `index_ranges` brings these into range, so nothing is done to them here."""

from __future__ import annotations

from tvm import relax, te, tirx, topi

from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import as_expr, python_text

from ..node import Node


def gather(node: Node) -> relax.Expr:
    """Convert Gather."""
    x, indices = node.operands[:2]
    axis = node.attributes.get("axis", 0)
    if isinstance(x, relax.ShapeExpr):
        position = node.constant(1, "indices") if not isinstance(indices, relax.ShapeExpr) else None
        if position is not None and position.ndim == 0:
            return relax.prim_value(x[int(position)])
    x, indices = _tensor(node, x), _tensor(node, indices)
    return relax.op.take(x, indices, node.axis(axis, x.ty.ndim))


def _tensor(node: Node, operand: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.shape_to_tensor(operand)) if isinstance(operand, relax.ShapeExpr) else operand


def gather_elements(node: Node) -> relax.Expr:
    """Convert GatherElements."""
    x, indices = node.operands[:2]
    return relax.op.gather_elements(x, indices, node.axis(node.attributes.get("axis", 0), x.ty.ndim))


def gather_nd(node: Node) -> relax.Expr:
    """Convert GatherND."""
    return relax.op.gather_nd(*node.operands[:2], node.attributes.get("batch_dims", 0))


def scatter_elements(node: Node) -> relax.Expr:
    """Convert ScatterElements and its older name, Scatter."""
    x, indices, updates = node.operands[:3]
    axis = node.axis(node.attributes.get("axis", 0), x.ty.ndim)
    return relax.op.scatter_elements(x, indices, updates, axis, _reduction(node))


def scatter_nd(node: Node) -> relax.Expr:
    """Convert ScatterND."""
    return relax.op.scatter_nd(*node.operands[:3], _reduction(node))


def one_hot(node: Node) -> relax.Expr:
    """Convert OneHot, in the dtype of its values; a negative index counts from the end."""
    indices, values = node.operands[0], node.operands[2]
    (depth,), rank = node.sizes(1, "depth") or [0], indices.ty.ndim + 1
    node.require(as_expr(depth) >= 1, f"needs a depth of at least 1, not {python_text(depth)}")
    axis = node.attributes.get("axis", -1) % rank

    def compute(indices: te.Tensor, values: te.Tensor, depth: tirx.Expr) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            index = indices(*at[:axis], *at[axis + 1 :]).astype("int64")
            counted = tirx.Select(index < 0, index + depth, index)
            return tirx.Select(tirx.EQ(counted, at[axis].astype("int64")), values(1), values(0))

        return te.compute([*indices.shape[:axis], depth, *indices.shape[axis:]], element, tag=topi.tag.INJECTIVE)

    return node.builder.emit_te(compute, indices, values, as_expr(depth), primfunc_name_hint="one_hot")


def top_k(node: Node) -> relax.Expr:
    """Convert TopK, whose number of elements may follow from open sizes: all are sorted then, and the first ones kept.

    Elements are sorted even where the node leaves that open.
    """
    x, sizes = node.operands[0], node.shape_of()
    given = [node.attributes.get("k")] if node.opset < 10 else node.sizes(1, "k")
    if given is None or len(given) != 1 or given[0] is None:
        raise Refused("its k is no single number", "a k of one element")
    k, axis = node.facts.simplified(given[0]), node.axis(node.attributes.get("axis", -1), len(sizes))
    size = sizes[axis]
    need = f"needs a k from 1 to the {python_text(size)} elements of its axis {axis}, not {python_text(k)}"
    node.require(tirx.all(as_expr(k) >= 1, as_expr(k) <= as_expr(size)), need)
    largest = bool(node.attributes.get("largest", 1))
    found = node.emit(relax.op.topk(x, k if isinstance(k, int) else -1, axis, "both", largest, "int64"))
    parts = [node.emit(relax.TupleGetItem(found, index)) for index in range(2)]
    if not isinstance(k, int):
        parts = [relax.op.strided_slice(part, [axis], [0], [k], [1], assume_inbound=True) for part in parts]
    return relax.Tuple([node.emit(part) for part in parts])


def _reduction(node: Node) -> str:
    """Return Relax's name of the function that combines an element with its update."""
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add", "mul", "min", "max"):
        raise Refused(f"its reduction {reduction!r} is unknown", "one of none, add, mul, min and max")
    return "update" if reduction == "none" else reduction
