"""Bounds of indices that a model computes, from the operators that compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, mul

import numpy as np
from tvm import relax, tirx

from ..graph.constants import constant_value, sizes_of
from ..graph.graph import operator_name
from ..sizes.facts import Size, SizeFacts, as_expr, product

Bounds = tuple[Size, Size]
"""The least and the greatest value that the elements of a tensor may have."""

MAX_STEPS = 16
"""The largest number of operators, each on the result of the next, that are looked through."""

MOVING = (
    "astype", "broadcast_to", "collapse_sum_to", "expand_dims", "flatten", "flip", "gather_elements", "gather_nd",
    "permute_dims", "repeat", "reshape", "squeeze", "strided_slice", "take", "tile",
)  # fmt: skip
"""Operators whose results are elements of their first operand; casts between integers too."""


@dataclass(frozen=True)
class Values:
    """The facts about a function's variables."""

    lookup_binding: Callable[[relax.Var], relax.Expr | None]
    """The function that returns the value of a variable; None for a parameter."""
    facts: SizeFacts


def bounds_of(values: Values, expr: relax.Expr, steps: int = MAX_STEPS) -> Bounds | None:
    """Return bounds of the integers of a tensor; None where nothing is known.

    Before: `k = R.argmax(x, axis=1)` with x of the shape (n, 10, h). After: (0, 9).
    """
    if isinstance(expr, relax.Var) and (value := values.lookup_binding(expr)) is not None:
        found = bounds_of(values, value, steps)
        return _of_type(expr) if found is None else found
    array = constant_value(expr)
    if array is not None:
        return (int(array.min()), int(array.max())) if array.size and array.dtype.kind in "biu" else None
    if isinstance(expr, relax.TupleGetItem):
        return _of_part(values, expr)
    name = (operator_name(expr) or "").removeprefix("relax.")
    if not steps or not name:
        return _of_type(expr)

    def of(index: int) -> Bounds | None:
        return bounds_of(values, expr.args[index], steps - 1)

    if name in MOVING:
        return of(0) if _is_whole(expr.args[0]) else None
    known = KNOWN.get(name)
    found = None if known is None else known(values, expr)
    if found is None and name in COMBINING:
        a, b = (of(index) for index in ((1, 2) if name == "where" else (0, 1)))
        found = COMBINING[name](a, b)
    return _of_type(expr) if found is None else found


def _of_type(expr: relax.Expr) -> Bounds | None:
    """Return the bounds that a tensor's type alone has, if they are narrow."""
    dtype = str(expr.ty.dtype) if isinstance(expr.ty, relax.TensorType) else ""
    if dtype == "bool":
        return 0, 1
    if dtype in ("int8", "int16", "uint8", "uint16"):
        limits = np.iinfo(dtype)
        return int(limits.min), int(limits.max)
    return None


def _is_whole(expr: relax.Expr) -> bool:
    """Return whether the elements of an operand are integers or truth values."""
    return isinstance(expr.ty, relax.TensorType) and "float" not in str(expr.ty.dtype)


def _of_part(values: Values, item: relax.TupleGetItem) -> Bounds | None:
    """Return bounds of one result of an operator: of the indices that TopK returns."""
    source = item.tuple_value
    value = values.lookup_binding(source) if isinstance(source, relax.Var) else source
    if value is None:
        return None
    if operator_name(value) == "relax.topk" and (item.index == 1 or value.attrs.ret_type == "indices"):
        return _of_indices_into_axis(values, value)
    return bounds_of(values, value.fields[item.index]) if isinstance(value, relax.Tuple) else None


def _of_indices_into_axis(values: Values, call: relax.Call) -> Bounds | None:
    """Return the bounds of indices into one axis of a call's operand, or into all elements."""
    sizes, axis = sizes_of(call.args[0].ty), call.attrs.axis
    if sizes is None:
        return None
    size = product(sizes) if axis is None else sizes[int(axis)]
    return 0, values.facts.simplified(size - 1)


def _of_nonzero(values: Values, call: relax.Call) -> Bounds | None:
    sizes = sizes_of(call.args[0].ty)
    if sizes is None or len(sizes) != 1:
        return None
    return 0, values.facts.simplified(sizes[0] - 1)


def _of_range(values: Values, call: relax.Call) -> Bounds | None:
    start, end, step = (getattr(each, "value", each) for each in call.args)
    if not all(isinstance(each, (int, tirx.IntImm)) for each in (start, step)) or int(step) < 1:
        return None
    last = end - 1 if isinstance(end, int) else as_expr(end) - 1
    return int(start), values.facts.simplified(last)


def _of_clip(values: Values, call: relax.Call) -> Bounds | None:
    low, high = (getattr(each, "value", each) for each in call.args[1:3])
    return int(low), int(high)


KNOWN: dict[str, Callable[[Values, relax.Call], Bounds | None]] = {
    "arange": _of_range,
    "argmax": _of_indices_into_axis,
    "argmin": _of_indices_into_axis,
    "argsort": _of_indices_into_axis,
    "clip": _of_clip,
    "nonzero": _of_nonzero,
}
"""The bounds of the results of operators whatever their operands are."""


def _of_remainder(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    """Return the bounds of remainders, which have the sign of the divisor."""
    if b is None or not isinstance(b[0], int) or b[0] < 1:
        return None
    return 0, b[1] - 1


def _of_all(a: Bounds | None, b: Bounds | None, combine: Callable[[int, int], int]) -> Bounds | None:
    """Return the bounds of a combination of two operands that is least and greatest at the ends of both."""
    ends = [*(a or ()), *(b or ())]
    if a is None or b is None or not all(isinstance(each, int) for each in ends):
        return None
    found = [combine(one, other) for one in a for other in b]
    return min(found), max(found)


def _of_larger(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    return _of_all(a, b, max)


def _of_smaller(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    return _of_all(a, b, min)


def _of_sum(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    return _of_all(a, b, add)


def _of_product(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    return _of_all(a, b, mul)


COMBINING: dict[str, Callable[[Bounds | None, Bounds | None], Bounds | None]] = {
    "add": _of_sum,
    "floor_mod": _of_remainder,
    "maximum": _of_larger,
    "minimum": _of_smaller,
    "multiply": _of_product,
    "where": lambda a, b: None if a is None or b is None else _of_either(a, b),
}
"""The bounds of the results of operators on two operands, by the operands' bounds."""


def _of_either(a: Bounds, b: Bounds) -> Bounds | None:
    if all(isinstance(each, int) for each in (*a, *b)):
        return min(a[0], b[0]), max(a[1], b[1])
    return None
