"""Converters of reductions over axes that are attributes or operands, over all axes, or over none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from tvmconv.network.graph.faults import Refused

from ..node import Converter, Node

Step = Callable[[relax.Expr], relax.Expr]


def _same(x: relax.Expr) -> relax.Expr:
    return x


def _square(x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(x, x)


@dataclass(frozen=True)
class Reduction:
    """The three steps of an operator: after(reduce(before(x)))."""

    reduce: Callable[[Node, relax.Expr, Sequence[int]], relax.Expr]
    """The function that reduces over axes and keeps them with a size of 1."""
    empty: float
    """The result of a reduction of no elements."""
    before: Step = _same
    after: Step = _same


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
        y = node.emit(how.before(x)) if how.before is not _same else x
        if axes:
            y = node.emit(_nothing(y, axes, how.empty) if _has_none(y, axes) else how.reduce(node, y, axes))
        y = node.emit(how.after(y)) if how.after is not _same else y
        if axes and not node.attributes.get("keepdims", 1):
            y = relax.op.squeeze(y, axes)
        return y

    return convert


def _has_none(x: relax.Expr, axes: Sequence[int]) -> bool:
    sizes = list(x.ty.shape)
    return any(isinstance(sizes[axis], tirx.IntImm) and int(sizes[axis]) == 0 for axis in axes)


def _nothing(x: relax.Expr, axes: Sequence[int], value: float) -> relax.Expr:
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


def _sum(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return relax.op.sum(x, axes, keepdims=True)


def _mean(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return relax.op.mean(x, axes, keepdims=True)


def _product(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return relax.op.prod(x, axes, keepdims=True)


def _extreme(largest: bool) -> Callable[[Node, relax.Expr, Sequence[int]], relax.Expr]:
    """Return the function that reduces to the largest or smallest element.

    TVM's own result for nothing but infinities is the last finite number.
    """
    end, join = (-np.inf, tirx.max) if largest else (np.inf, tirx.min)

    def reduce(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
        dtype = str(x.ty.dtype)
        if dtype == "bool":
            wide = node.emit(relax.op.astype(x, "uint8"))
            y = relax.op.max(wide, axes, keepdims=True) if largest else relax.op.min(wide, axes, keepdims=True)
            return relax.op.astype(y, "bool")
        if "float" not in dtype:
            return relax.op.max(x, axes, keepdims=True) if largest else relax.op.min(x, axes, keepdims=True)
        reducer = te.comm_reducer(lambda a, b: join(a, b), lambda dtype: tirx.const(end, dtype), "extreme")

        def compute(x: te.Tensor) -> te.Tensor:
            steps = {axis: te.reduce_axis((0, x.shape[axis]), f"r{axis}") for axis in sorted(axes)}
            shape = [1 if axis in steps else size for axis, size in enumerate(x.shape)]

            def element(*at: tirx.Var) -> tirx.Expr:
                places = [steps.get(axis, each) for axis, each in enumerate(at)]
                return reducer(x[tuple(places)], axis=list(steps.values()))

            return te.compute(shape, element, "extreme")

        return node.builder.emit_te(compute, x, primfunc_name_hint="max" if largest else "min")

    return reduce


def _log_sum_exp(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    """Return log(sum(exp(x))), with the largest element taken out so that no power overflows; infinities stay."""
    largest = node.emit(_extreme(True)(node, x, axes))
    finite = relax.op.where(relax.op.isfinite(largest), largest, relax.const(0, x.ty.dtype))
    powers = relax.op.exp(relax.op.subtract(x, node.emit(finite)))
    return relax.op.add(relax.op.log(relax.op.sum(powers, axes, keepdims=True)), finite)


REDUCTIONS = {
    "ReduceL1": Reduction(_sum, 0.0, before=relax.op.abs),
    "ReduceL2": Reduction(_sum, 0.0, before=_square, after=relax.op.sqrt),
    "ReduceLogSum": Reduction(_sum, 0.0, after=relax.op.log),
    "ReduceLogSumExp": Reduction(_log_sum_exp, -np.inf),
    "ReduceMax": Reduction(_extreme(True), -np.inf),
    "ReduceMean": Reduction(_mean, np.nan),
    "ReduceMin": Reduction(_extreme(False), np.inf),
    "ReduceProd": Reduction(_product, 1.0),
    "ReduceSum": Reduction(_sum, 0.0),
    "ReduceSumSquare": Reduction(_sum, 0.0, before=_square),
}
"""The reduction of each operator. Over no axes the logarithm of a power is the number itself."""
