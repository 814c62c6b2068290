"""Indices that a model computes: none reads or writes outside of its array, and an error names those out of range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ..graph.constants import Array, constant_value, sizes_of, static_shape
from ..graph.faults import Refused, unsupported
from ..graph.graph import blocks_of, operator_name, rebind
from ..sizes.facts import Size, SizeFacts, as_expr, product, python_text
from .bounds import Values, bounds_of
from .operator import indices_in_range

HINT = "indices from minus the size of the axis to that size less 1"


def with_indices_in_range(mod: tvm.IRModule, facts: SizeFacts, words: Mapping[str, str]) -> tvm.IRModule:
    """Return the module with all indices of "main" counted from the beginning of an axis, and none beyond it.

    A negative index counts from the end. Constants are compared with sizes, open ones in a condition; `words` are nodes
    in words, by the names of their variables. Other indices that may be out of range are clamped by an operator, for
    which `with_index_checks` adds a check. Raises `UnsupportedModelError` for constants out of range.

    Before: `y = R.take(x, i, axis=0)`.
    After: `j = R.indices_in_range(i, R.shape([n]), "Gather (node 'y') …")`, `y = R.take(x, j, axis=0, mode="clip")`.
    """
    blocks = blocks_of(mod)
    bindings = {var: value for block in blocks for var, value in block.values.items()}
    values = {}
    for branch, var, value in [(block.branch, *each) for block in blocks for each in block.values.items()]:
        name = (operator_name(value) or "").removeprefix("relax.")
        if name not in AXES or (name == "take" and value.attrs.mode != "fast"):  # TVM brings the others into range
            continue
        variable = var.name.removesuffix("_output")
        node = _Node(words.get(variable, f"{name} (node {variable!r})"), facts, bindings)
        try:
            with facts.in_branch(branch):
                values[var] = node.with_indices_in_range(value, name)
        except Refused as refusal:
            raise unsupported([node.words], refusal.problem, refusal.hint or HINT) from None
    return rebind(mod, values) if values else mod


@dataclass(frozen=True)
class _Node:
    """An operator with indices."""

    words: str
    facts: SizeFacts
    bindings: Mapping[relax.Var, relax.Expr]

    def with_indices_in_range(self, call: relax.Call, name: str) -> relax.Expr:
        """Return the call with other indices."""
        x, indices, *others = call.args
        if (sizes := sizes_of(x.ty)) is None:
            raise Refused("the number of axes that it indexes is known only when the model runs")
        if not sizes:
            raise Refused("it indexes a number, which has no axes", "a tensor with axes")
        if isinstance(indices.ty, relax.TupleType):  # one tensor for each of the first axes
            parts = self._value_of(indices)
            fields = (
                list(parts.fields)
                if isinstance(parts, relax.Tuple)
                else [relax.TupleGetItem(indices, index) for index in range(len(indices.ty.fields))]
            )
            indices = relax.Tuple([self._in_range(part, [axis], sizes) for axis, part in enumerate(fields)])
        else:
            indices = self._in_range(indices, AXES[name](call, len(sizes)), sizes)
        if name == "take":  # TVM warns that "fast" may read outside of the array
            return relax.op.take(x, indices, call.attrs.axis, mode="clip")
        return relax.Call(call.op, [x, indices, *others], call.attrs, call.ty_args)

    def _in_range(self, indices: relax.Expr, axes: Sequence[int] | None, shape: Sequence[Size]) -> relax.Expr:
        """Return indices of an axis, or of one axis for each column of the last axis, that are in range.

        `axes` is None where they count all elements.
        """
        sizes = [product(shape)] if axes is None else [shape[axis] for axis in axes]
        if str(indices.ty.dtype) == "bool" or 0 in (static_shape(indices.ty) or ()):
            return indices
        need = f"needs indices of {_axes_text(axes, sizes)}"
        bounds = self._bounds(indices, len(sizes))
        wanted = [
            tirx.all(as_expr(low) >= 0 - as_expr(size), as_expr(high) < as_expr(size))
            for (low, high), size in zip(bounds or (), sizes, strict=False)
        ]
        is_constant = self._value(indices) is not None
        if is_constant and all(map(self.facts.are_of_inputs, sizes)):
            for test, (low, high) in zip(wanted, bounds or (), strict=False):
                self.facts.require(test, self.words, f"{need}; they are {_range_text(low, high)}")
        is_proved = bounds is not None and all(self.facts.proves(test) is True for test in wanted)
        is_counted = bounds is not None and all(self.facts.proves(as_expr(low) >= 0) is True for low, _ in bounds)
        if is_counted and (is_proved or is_constant) and all(map(self.facts.are_of_inputs, sizes)):
            return indices
        text = "" if is_proved else f"{self.words} {need}"
        return indices_in_range(indices, [as_expr(size) for size in sizes], text)

    def _bounds(self, indices: relax.Expr, columns: int) -> list[tuple[Size, Size]] | None:
        """Return the bounds of all indices, or of each column of the last axis."""
        array = self._value(indices)
        if array is not None and columns > 1:
            parts = array.reshape(-1, columns).T
            return [(int(part.min()), int(part.max())) for part in parts] if array.size else [(0, 0)] * columns
        if array is not None and not array.size:
            return [(0, -1)]
        found = bounds_of(Values(self.bindings.get, self.facts), indices)
        return None if found is None else [found] * columns

    def _value(self, expr: relax.Expr) -> Array | None:
        return constant_value(self._value_of(expr))

    def _value_of(self, expr: relax.Expr) -> relax.Expr | None:
        return self.bindings.get(expr) if isinstance(expr, relax.Var) else expr


def _of_axis(call: relax.Call, rank: int) -> list[int] | None:
    return None if call.attrs.axis is None else [int(call.attrs.axis) % rank]


def _of_columns(call: relax.Call, rank: int) -> list[int]:
    columns = (sizes_of(call.args[1].ty) or ())[-1]
    if not isinstance(columns, int):
        raise Refused("it needs indices of a known number of axes", "a known size of the indices' last axis")
    first = int(getattr(call.attrs, "batch_dims", 0))
    return list(range(first, first + columns))


AXES: dict[str, Callable[[relax.Call, int], list[int] | None]] = {
    "gather_elements": _of_axis,
    "gather_nd": _of_columns,
    "index_put": _of_columns,
    "index_tensor": _of_columns,
    "scatter_elements": _of_axis,
    "scatter_nd": _of_columns,
    "take": _of_axis,
}
"""The operators with indices into their first operand, and the axes that these count."""


def _axes_text(axes: Sequence[int] | None, sizes: Sequence[Size]) -> str:
    """Return axes and their sizes in words, such as "axis 1, of 4 elements"."""
    if axes is None:
        return f"{python_text(sizes[0])} elements"
    if len(axes) == 1:
        return f"axis {axes[0]}, of {python_text(sizes[0])} elements"
    counts = ", ".join(map(python_text, sizes))
    return f"axes {axes[0]} to {axes[-1]}, of {counts} elements"


def _range_text(low: Size, high: Size) -> str:
    return python_text(low) if isinstance(low, int) and low == high else f"{python_text(low)} to {python_text(high)}"
