"""Converters of reductions over axes that are attributes or operands, over all axes, or over none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx

from tvmconv.network.graph.faults import Refused

from ..node import Converter, Node

Step = Callable[[relax.Expr], relax.Expr]


def _same(x: relax.Expr) -> relax.Expr:
    return x


def _square(x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(x, x)


@dataclass(frozen=True)
class Reduction:
    """The three steps of an operator: finish(reduce(prepare(x)))."""

    reduce: Callable[[Node, relax.Expr, Sequence[int]], relax.Expr]
    """The function that reduces over axes and keeps them with a size of 1."""
    empty: float
    """The result of a reduction of no elements."""
    prepare: Step = _same
    finish: Step = _same


def reduction(how: Reduction) -> Converter:
    """Return the converter of an operator; without axes it reduces over all of them, or none, as the node says."""

    def convert(node: Node) -> relax.Expr:
        x = node.operands[0]
        rank = x.ty.ndim
        given = node.attributes.get("axes")
        if given is None:
            given = node.constant(1, "axes")
        axes = [int(axis) % rank for axis in ([] if given is None else given)]
        if not axes and not node.attributes.get("noop_with_empty_axes", 0):
            axes = list(range(rank))
        y = node.emit(how.prepare(x)) if how.prepare is not _same else x
        if axes:
            y = node.emit(_of_no_elements(y, axes, how.empty) if _has_none(y, axes) else how.reduce(node, y, axes))
        y = node.emit(how.finish(y)) if how.finish is not _same else y
        if axes and not node.attributes.get("keepdims", 1):
            y = relax.op.squeeze(y, axes)
        return y

    return convert


def _has_none(x: relax.Expr, axes: Sequence[int]) -> bool:
    sizes = list(x.ty.shape)
    return any(isinstance(sizes[axis], tirx.IntImm) and int(sizes[axis]) == 0 for axis in axes)


def _of_no_elements(x: relax.Expr, axes: Sequence[int], value: float) -> relax.Expr:
    """Return the result of reductions of no elements, which TVM leaves unwritten.

    For an infinity an integer has the last of its numbers.
    """
    dtype = str(x.ty.dtype)
    if "float" not in dtype and not np.isfinite(value):
        if dtype == "bool":
            value = float(value > 0)
        elif np.isnan(value):
            raise Refused(f"the mean of no elements of {dtype} is no number")
        else:
            limits = np.iinfo(dtype)
            return _full(x, axes, limits.min if value < 0 else limits.max)
    return _full(x, axes, value)


def _full(x: relax.Expr, axes: Sequence[int], value: float) -> relax.Expr:
    shape = [1 if axis in axes else size for axis, size in enumerate(x.ty.shape)]
    return relax.op.full(shape, relax.const(value, x.ty.dtype))


def _reduction_by(operator: Callable[..., relax.Expr]) -> Callable[[Node, relax.Expr, Sequence[int]], relax.Expr]:
    """Return the function that reduces by an operator of Relax, which has no extremes of truth values."""

    def reduce(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
        y = operator(node.builder.cast(x, "uint8") if str(x.ty.dtype) == "bool" else x, axes, keepdims=True)
        return node.builder.cast(y, str(x.ty.dtype))

    return reduce


def _log_sum_exp(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    """Return log(sum(exp(x))), with the largest element taken out so that no power overflows; infinities stay."""
    largest = node.emit(relax.op.max(x, axes, keepdims=True))
    finite = relax.op.where(relax.op.isfinite(largest), largest, relax.const(0, x.ty.dtype))
    powers = relax.op.exp(relax.op.subtract(x, node.emit(finite)))
    return relax.op.add(relax.op.log(relax.op.sum(powers, axes, keepdims=True)), finite)


REDUCTIONS = {
    "ReduceL1": Reduction(_reduction_by(relax.op.sum), 0.0, prepare=relax.op.abs),
    "ReduceL2": Reduction(_reduction_by(relax.op.sum), 0.0, prepare=_square, finish=relax.op.sqrt),
    "ReduceLogSum": Reduction(_reduction_by(relax.op.sum), 0.0, finish=relax.op.log),
    "ReduceLogSumExp": Reduction(_log_sum_exp, -np.inf),
    "ReduceMax": Reduction(_reduction_by(relax.op.max), -np.inf),
    "ReduceMean": Reduction(_reduction_by(relax.op.mean), np.nan),
    "ReduceMin": Reduction(_reduction_by(relax.op.min), np.inf),
    "ReduceProd": Reduction(_reduction_by(relax.op.prod), 1.0),
    "ReduceSum": Reduction(_reduction_by(relax.op.sum), 0.0),
    "ReduceSumSquare": Reduction(_reduction_by(relax.op.sum), 0.0, prepare=_square),
}
"""The reduction of each operator. Over no axes the logarithm of a power is the number itself."""
