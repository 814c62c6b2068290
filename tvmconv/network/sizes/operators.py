"""The conditions that Relax's operators put on sizes: channels that fit a weight, room for a window.

Relax takes operators whose sizes it cannot prove wrong, and the built code then reads and writes past its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import tvm
from tvm import relax, tirx

from tvmconv.problem.errors import UnsupportedModelError

from ..graph.constants import sizes_of
from ..graph.faults import Refused, unsupported
from ..graph.graph import blocks_of, operator_name
from .facts import Size, SizeFacts, equal, is_number, product, python_text, shape_text, without_common

LEAST = {"strides": 1, "dilation": 1, "padding": 0, "groups": 1}
"""The smallest value of each attribute of convolutions and pooling."""

HINT = "export the model with other shapes, or give them as `shapes` (--input-shapes)"

Tests: TypeAlias = Iterator[tuple[bool | tirx.Expr, str]]
"""Tests of sizes that have to be true, each with its reason in words."""


def require_sizes_of_operators(mod: tvm.IRModule, facts: SizeFacts, words: Mapping[str, str]) -> tvm.IRModule:
    """Require of each call what the operators of "main" need of their sizes; the module stays as it is.

    `words` are nodes in words, by the names of their variables. Raises `UnsupportedModelError` for an operator that no
    sizes fit, and for a convolution or a pooling with impossible windows.
    """
    for block in blocks_of(mod):
        node = ""
        nodes = []
        for var, value in reversed(block.values.items()):
            node = words.get(var.name.removesuffix("_output"), node)  # variables without a name are the next one's
            nodes.append((value, node))
        for value, node in reversed(nodes):
            if (operator := operator_name(value)) is None:
                continue
            name = operator.removeprefix("relax.").removeprefix("nn.")
            node = node or name
            if getattr(value.attrs, "strides", None) is not None:
                _require_numbers(node, value)
            try:
                with facts.in_branch(block.branch):
                    for test, need in _tests(name, value):
                        facts.require(test, node, need)
                    for test, need in _tests_of_results(name, value):
                        if isinstance(test, bool) or facts.are_of_inputs(test):  # otherwise TVM fails to allocate it
                            facts.require(test, node, need)
            except Refused as refusal:
                raise unsupported([node], refusal.problem, HINT) from None
    return mod


def _require_numbers(node: str, call: relax.Call) -> None:
    """Raise `UnsupportedModelError` for a convolution or a pooling with a negative stride or such."""
    for attribute, least in LEAST.items():
        given = getattr(call.attrs, attribute, least)
        values = [int(given)] if isinstance(given, int) else [int(number) for number in given]
        if any(number < least for number in values):
            raise UnsupportedModelError(f"{node} has {attribute} {values}; expected {least} or more")


def _are_known(types: Iterable[tvm.ir.Type]) -> bool:
    """Return whether all of some types are tensors of known rank."""
    return all(isinstance(ty, relax.TensorType) and sizes_of(ty) is not None for ty in types)


def _tests(name: str, call: relax.Call) -> Tests:
    """Yield the tests of the sizes that a call of an operator reads."""
    if name in OPERATORS and _are_known(each.ty for each in call.args if isinstance(each.ty, relax.TensorType)):
        yield from OPERATORS[name](call)


def _tests_of_results(name: str, call: relax.Call) -> Tests:
    """Yield the tests of the sizes of an operator's results."""
    need, least = ("windows that fit", 1) if name in WINDOWED else ("sizes of at least 0", 0)
    types = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    for ty in types if _are_known(types) else []:
        for axis, size in enumerate(_sizes(ty)):
            yield (
                size >= (least if axis > 1 else 0),
                f"needs {need}; its output has the shape {shape_text(_sizes(ty))}",
            )


def _convolution(call: relax.Call) -> Tests:
    x, w = map(_sizes_of_argument, call.args)
    channels = w[0] if call.op.name.endswith("_transpose") else w[1] * int(call.attrs.groups)
    yield equal(x[1], channels), f"needs images of {python_text(channels)} channels; they have {python_text(x[1])}"
    yield not any(is_number(size, 0) for size in w), f"needs a weight with elements, not {shape_text(w)}"


def _matmul(call: relax.Call) -> Tests:
    a, b = map(_sizes_of_argument, call.args)
    inner = b[-2] if len(b) > 1 else b[-1]
    yield (
        equal(a[-1], inner),
        f"needs rows as long as columns; they have {python_text(a[-1])} and {python_text(inner)} elements",
    )
    yield a[-1] >= 1, f"needs products to add up, not {python_text(a[-1])}"
    for one, other in zip(a[-3::-1], b[-3::-1], strict=False):
        if not is_number(one, 1) and not is_number(other, 1):
            yield (
                equal(one, other),
                f"needs as many matrices on both sides, not {python_text(one)} and {python_text(other)}",
            )


def _reshape(call: relax.Call) -> Tests:
    before, after = _sizes_of_argument(call.args[0]), _sizes(call.ty)
    left, right = without_common(before, after)
    yield (
        equal(product(left), product(right)),
        f"needs as many elements in {shape_text(after)} as in {shape_text(before)}",
    )


def _squeeze(call: relax.Call) -> Tests:
    sizes = _sizes_of_argument(call.args[0])
    for axis in call.attrs.axis or ():
        yield equal(sizes[int(axis)], 1), f"needs an axis {int(axis)} of size 1, not {python_text(sizes[int(axis)])}"


def _normalization(call: relax.Call) -> Tests:
    """Yield the tests of an operator whose factors have the sizes of some axes."""
    sizes = _sizes_of_argument(call.args[0])
    axes = next(getattr(call.attrs, name) for name in AXES if hasattr(call.attrs, name))
    normalized = [sizes[int(axis)] for axis in ([axes] if isinstance(axes, int) else axes)]
    for factor in call.args[1:]:
        for one, other in zip(normalized, _sizes_of_argument(factor), strict=False):
            yield equal(one, other), f"needs factors for {python_text(one)} channels; it has {python_text(other)}"


def _reduction(call: relax.Call) -> Tests:
    sizes, axes = _sizes_of_argument(call.args[0]), call.attrs.axis
    axes = range(len(sizes)) if axes is None else [int(axis) for axis in ([axes] if isinstance(axes, int) else axes)]
    for axis in axes:
        yield sizes[axis] >= 1, f"needs elements along axis {axis}, which has {python_text(sizes[axis])}"


def _concat(call: relax.Call) -> Tests:
    if not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return
    first, *others = [_sizes(field.ty) for field in call.args[0].fields]
    for other in others:
        for axis, (one, another) in enumerate(zip(first, other, strict=True)):
            if axis != int(call.attrs.axis) % len(first):
                yield (
                    equal(one, another),
                    f"needs axes {axis} of one size, not {python_text(one)} and {python_text(another)}",
                )


def _broadcast_to(call: relax.Call) -> Tests:
    sizes, result = _sizes_of_argument(call.args[0]), _sizes(call.ty)
    for size, target in zip(sizes[::-1], result[::-1], strict=False):
        if not is_number(size, 1):
            yield equal(size, target), f"needs an axis of size 1 or {python_text(target)}, not {python_text(size)}"


def _topk(call: relax.Call) -> Tests:
    size, k = _sizes_of_argument(call.args[0])[int(call.attrs.axis)], int(call.attrs.k)
    yield size >= k, f"needs {k} elements; it has {python_text(size)}"


def _gather_elements(call: relax.Call) -> Tests:
    """Yield the tests of indices on all axes but the one that they choose from, and of updates scattered by them."""
    data, indices, *updates = map(_sizes_of_argument, call.args)
    yield len(data) == len(indices), f"needs indices of {len(data)} axes, not {len(indices)}"
    for axis, (size, count) in enumerate(zip(data, indices, strict=False)):
        if axis != int(call.attrs.axis) % max(len(data), 1):
            yield (
                count <= size,
                f"needs at most {python_text(size)} indices along axis {axis}, not {python_text(count)}",
            )
    for other in updates:
        for one, another in zip(indices, other, strict=False):
            yield one <= another, f"needs updates for indices {shape_text(indices)}, not {shape_text(other)}"


def _gather_nd(call: relax.Call) -> Tests:
    data, indices = map(_sizes_of_argument, call.args)
    for axis in range(int(call.attrs.batch_dims)):
        one, other = data[axis], indices[axis]
        yield equal(one, other), f"needs batches of one size, not {python_text(one)} and {python_text(other)}"


def _scatter_nd(call: relax.Call) -> Tests:
    data, indices, updates = map(_sizes_of_argument, call.args)
    if indices and isinstance(indices[-1], int):
        wanted = (*indices[:-1], *data[indices[-1] :])
        yield (
            len(wanted) == len(updates),
            f"needs updates of the shape {shape_text(wanted)}, not {shape_text(updates)}",
        )
        for one, other in zip(wanted, updates, strict=False):
            yield equal(one, other), f"needs updates of the shape {shape_text(wanted)}, not {shape_text(updates)}"


AXES = ("channel_axis", "axis", "axes")
"""The attributes of normalizations with the axes of their factors, the first one that an operator has."""

WINDOWED = {f"{kind}{rank}d" for kind in ("conv", "max_pool", "avg_pool") for rank in (1, 2, 3)} | {
    f"conv{rank}d_transpose" for rank in (1, 2, 3)
}
"""Operators whose windows have to fit the axes from the third one on: convolutions and pooling."""

REDUCTIONS = (
    "max",
    "min",
    "sum",
    "mean",
    "prod",
    "variance",
    "std",
    "argmax",
    "argmin",
    "nn.softmax",
    "nn.log_softmax",
)

OPERATORS: dict[str, Callable[[relax.Call], Tests]] = {
    **{f"conv{rank}d{kind}": _convolution for rank in (1, 2, 3) for kind in ("", "_transpose")},
    **dict.fromkeys(("batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm", "prelu"), _normalization),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "matmul": _matmul,
    "reshape": _reshape,
    "scatter_elements": _gather_elements,
    "scatter_nd": _scatter_nd,
    "squeeze": _squeeze,
    "topk": _topk,
}
"""The tests of an operator's sizes, by its name without "relax." and "nn."."""


def _sizes(ty: relax.TensorType) -> Sequence[Size]:
    return sizes_of(ty) or ()


def _sizes_of_argument(argument: relax.Expr) -> Sequence[Size]:
    return _sizes(argument.ty)
