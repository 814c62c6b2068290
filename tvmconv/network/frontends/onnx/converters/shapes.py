"""Converters of ONNX's operators that change shapes, to sizes that may be open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from tvm import relax, te, tirx, topi

from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.elements import Ratio
from tvmconv.network.sizes.facts import (
    Size,
    SizeFacts,
    as_expr,
    choice,
    equal,
    is_number,
    product,
    python_text,
    shape_text,
)
from tvmconv.problem.workload import MAX_ELEMENTS

from ...agreement import broadcastable
from ...builder import gathered, tiled
from ...shared.padding import Padding, padded
from ..node import Node
from ..sizes import Sizes

FARTHEST = 2**31
"""A start or an end of a slice from which on it is beyond any axis."""


PADDING_MODES = ("constant", "edge", "reflect", "wrap")


def reshape(node: Node) -> relax.Expr:
    """Convert Reshape: 0 keeps the input's size of that axis, unless `allowzero`; -1 takes all remaining elements."""
    before, wanted = node.shape_of(), node.sizes(1, "shape")
    if node.opset < 5 or wanted is None:
        wanted = [int(size) for size in node.attributes.get("shape", ())]
    if not node.attributes.get("allowzero", 0):
        if any(is_number(size, 0) and i >= len(before) for i, size in enumerate(wanted)):
            raise Refused(f"its shape {shape_text(wanted)} has a 0 behind the axes of its input")
        wanted = [before[i] if is_number(size, 0) else size for i, size in enumerate(wanted)]
    inferred = [i for i, size in enumerate(wanted) if is_number(size, -1)]
    if len(inferred) > 1 or any(isinstance(size, int) and size < -1 for size in wanted):
        raise Refused(f"its shape is {shape_text(wanted)}; one size may be -1, none smaller")
    if inferred:
        others = [size for i, size in enumerate(wanted) if i != inferred[0]]
        if any(is_number(size, 0) for size in others):
            raise Refused(f"its shape {shape_text(wanted)} leaves a size open that no number of elements decides")
        wanted[inferred[0]] = node.facts.quotient(before, others)
    return relax.op.reshape(node.operands[0], relax.ShapeExpr([as_expr(size) for size in wanted]))


RANK_NEED = "has a result whose rank follows from it, and the rest of the model takes one rank"
"""Why a call has to have the sizes that an importer chose for a rank."""


def squeeze(node: Node) -> relax.Expr:
    """Convert Squeeze; without axes it drops all axes of 1 element: of open ones those with which the model goes on."""
    sizes = node.shape_of()
    axes = node.attributes.get("axes") if node.opset < 13 else node.sizes(1, "axes")
    if axes is None:
        axes = [axis for axis, size in enumerate(sizes) if node.choose(equal(size, 1), False, RANK_NEED)]
    chosen = sorted({node.axis(int(axis), len(sizes)) for axis in axes})
    return relax.op.squeeze(node.operands[0], chosen) if chosen else node.operands[0]


def unsqueeze(node: Node) -> relax.Expr:
    """Convert Unsqueeze: axes of one element, counted among those of the result."""
    given = node.attributes.get("axes") if node.opset < 13 else node.sizes(1, "axes")
    if not given:
        raise Refused("it has no axes", "the axes to add")
    rank = len(node.shape_of()) + len(given)
    axes = sorted({node.axis(int(axis), rank) for axis in given})
    if len(axes) < len(given):
        raise Refused(f"it has an axis twice among {list(given)}", "each axis once")
    y = node.operands[0]
    for axis in axes:
        y = node.emit(relax.op.expand_dims(y, axis))
    return y


def expand(node: Node) -> relax.Expr:
    """Convert Expand: axes of 1 element, of the input or of the wanted shape, take the size of the other one."""
    x, wanted = node.operands[0], node.sizes(1, "shape") or []
    sizes = node.shape_of()
    rank = max(len(sizes), len(wanted))
    padded, target = ([*[1] * (rank - len(each)), *each] for each in (sizes, wanted))
    result: list[Size] = []
    for axis, (size, want) in enumerate(zip(padded, target, strict=True)):
        if is_number(size, 1):
            result.append(want)
            continue
        result.append(size)
        if isinstance(want, int) and isinstance(size, int) and want not in (1, size):
            raise Refused(f"its axis {axis} of {size} elements cannot become {want}")
        if not is_number(want, 1):
            same = node.facts.are_equal(size, want)
            if isinstance(want, int) and not same:
                result[-1] = want
            elif not same:
                need = f"needs axes {axis} of one size, or 1, not {python_text(size)} and {python_text(want)}"
                node.require(tirx.Or(as_test(equal(size, want)), as_test(equal(want, 1))), need)
    if any(
        not node.facts.are_equal(size, want)
        for size, want in zip(padded, result, strict=True)
        if not is_number(size, 1)
    ):
        like = relax.const(np.zeros([size if isinstance(size, int) else 1 for size in result], "bool"))
        x = broadcastable(node.builder, [x, like])[0]
    return relax.op.broadcast_to(x, relax.ShapeExpr([as_expr(size) for size in result]))


def as_test(test: bool | tirx.Expr) -> tirx.Expr:
    """Return a test as an expression of TVM."""
    return tirx.const(test, "bool") if isinstance(test, bool) else test


def constant_of_shape(node: Node) -> relax.Expr:
    """Convert ConstantOfShape: a tensor full of one value, 0 in float32 where none is told."""
    from onnx import numpy_helper

    value = node.attributes.get("value")
    filling = np.zeros((), "float32") if value is None else numpy_helper.to_array(value).reshape(())
    sizes = node.sizes(0, "shape") or []
    known = prod(size for size in sizes if isinstance(size, int))
    if known > MAX_ELEMENTS:
        raise Refused(f"its shape {shape_text(sizes)} has over {MAX_ELEMENTS} elements")
    return relax.op.full(
        relax.ShapeExpr(list(map(as_expr, sizes))), relax.const(filling, str(filling.dtype)), str(filling.dtype)
    )


def range_(node: Node) -> relax.Expr:
    """Convert Range from a start to before an end, by steps of a known number; the length may be an open size."""
    start, end, step = (_number(node, index, name) for index, name in enumerate(("start", "limit", "delta")))
    if not isinstance(step, int) or step == 0:
        raise Refused("its delta is no whole number that is known, or 0", "make it a constant of the model")
    length = _length(node.facts, start, end, step)
    dtype = str(node.operands[0].dtype if isinstance(node.operands[0], Sizes) else node.operands[0].ty.dtype)

    def compute(length: tirx.Expr, start: tirx.Expr) -> te.Tensor:
        return te.compute([length], lambda i: tirx.Cast(dtype, start + i * step), tag=topi.tag.INJECTIVE)

    return node.builder.emit_te(compute, as_expr(length), as_expr(start), primfunc_name_hint="range")


def _number(node: Node, index: int, name: str) -> Size:
    """Return an operand of Range as a whole number or an expression."""
    (value,) = node.sizes(index, name) or [0]
    if isinstance(value, Ratio) and value.below == 1:
        return value.above
    if isinstance(value, tirx.Expr):
        return value
    if isinstance(value, Ratio) or value != int(value):
        raise Refused(f"its {name} is no whole number, and another one is an open size")
    return int(value)


def slice_(node: Node) -> relax.Expr:
    """Convert Slice; starts and ends count from the end where they are negative, and are clamped to the axis."""
    x, sizes = node.operands[0], node.shape_of()
    if node.opset < 10:
        starts, ends = list(node.attributes["starts"]), list(node.attributes["ends"])
        axes, steps = node.attributes.get("axes"), None
    else:
        starts, ends = node.sizes(1, "starts") or [], node.sizes(2, "ends") or []
        axes, steps = node.sizes(3, "axes"), node.sizes(4, "steps")
    axes = list(range(len(starts))) if axes is None else [node.axis(int(axis), len(sizes)) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    cuts = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(step, int) or step == 0:
            raise Refused(f"its step along axis {axis} is no number that is known, or 0")
        cuts.append(_cut(node, axis, sizes[axis], start, end, step))
    return _elements_of_cuts(node, x, sizes, cuts)


def split(node: Node) -> relax.Expr:
    """Convert Split into parts of sizes that are told, or of one size, the last one smaller from opset 18 on."""
    x, sizes = node.operands[0], node.shape_of()
    axis = node.axis(node.attributes.get("axis", 0), len(sizes))
    size = sizes[axis]
    given = node.attributes.get("split") if node.opset < 13 else node.sizes(1, "split")
    parts = [] if given is None else list(given)
    if given is None:
        count = node.attributes.get("num_outputs", node.outputs)
        part = node.facts.quotient([size + count - 1], [count])
        if node.opset < 18:
            node.require(
                equal(size % count, 0), f"needs {count} equal parts of its axis {axis}, not of {python_text(size)}"
            )
        parts = [*[part] * (count - 1), node.facts.simplified(size - part * (count - 1))]
        node.require(parts[-1] >= 0, f"needs {count} parts of its axis {axis}, not of {python_text(size)}")
    if len(parts) != node.outputs:
        raise Refused(f"it has {node.outputs} outputs, and sizes of {len(parts)}")
    total = node.facts.simplified(sum(parts, 0))
    node.require(equal(total, size), f"needs an axis {axis} of {python_text(total)} elements, not {python_text(size)}")
    ends = np.cumsum([0, *parts]).tolist() if all(isinstance(part, int) for part in parts) else _sums(node, parts)
    if isinstance(size, int) and isinstance(total, int):
        return relax.op.split(x, ends[1:-1], axis) if len(parts) > 1 else relax.Tuple([x])
    cuts = [_Cut(axis, start, end, 1, part, True) for (start, end), part in zip(pairwise(ends), parts, strict=True)]
    return relax.Tuple([node.emit(_elements_of_cuts(node, x, sizes, [cut])) for cut in cuts])


def _sums(node: Node, parts: Sequence[Size]) -> list[Size]:
    ends: list[Size] = [0]
    for part in parts:
        ends.append(node.facts.simplified(ends[-1] + part))
    return ends


def tile(node: Node) -> relax.Expr:
    """Convert Tile: each axis repeated a number of times, which may be an open size."""
    x, sizes, repeats = node.operands[0], node.shape_of(), node.sizes(1, "repeats") or []
    if len(repeats) != len(sizes):
        raise Refused(f"it has {len(repeats)} repeats for {len(sizes)} axes", "one for each")
    wanted = [node.facts.simplified(product([size, times])) for size, times in zip(sizes, repeats, strict=True)]
    return tiled(node.builder, x, repeats, wanted)


def pad(node: Node) -> relax.Expr:
    """Convert Pad. What is cropped is so first, and the rest is padded, as in ONNX Runtime."""
    x, mode = node.operands[0], node.text("mode", "constant")
    sizes = node.shape_of()
    if mode not in PADDING_MODES:
        raise Refused(f"its mode {mode!r} is unknown", f"one of {', '.join(PADDING_MODES)}")
    if node.opset < 11:
        widths = list(node.attributes.get("pads") or node.attributes.get("paddings") or ())
        value: relax.Expr = relax.const(node.attributes.get("value", 0.0), x.ty.dtype)
    else:
        widths = node.sizes(1, "pads") or []
        value = relax.const(0, x.ty.dtype) if node.operand(2) is None else node.operands[2]
    given = node.constant(3, "axes")
    axes = list(range(len(sizes))) if given is None else [int(axis) for axis in given.reshape(-1)]
    if len(widths) != 2 * len(axes) or not all(-len(sizes) <= axis < len(sizes) for axis in axes):
        raise Refused(f"it has {len(widths)} pads for the axes {axes} of {len(sizes)}", "two pads for each axis")
    paddings = [Padding(0, 0)] * len(sizes)
    for index, axis in enumerate(axes):
        before, after = (node.builder.facts.simplified(widths[each]) for each in (index, index + len(axes)))
        paddings[axis] = Padding(before, after)
    return padded(node.builder, x, paddings, mode, value)


@dataclass(frozen=True)
class _Cut:
    """The elements start, start + step, … of an axis, `length` of them."""

    axis: int
    start: Size
    end: Size
    step: int
    length: Size
    is_inside: bool
    """True if the start is at most the end in each call, and the step positive."""


def _cut(node: Node, axis: int, size: Size, start: Size, end: Size, step: int) -> _Cut:
    """Return the cut of an axis from a start to before an end, both as Slice has them."""
    facts = node.facts
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = _clamped(node, _from_begin(node, start, size), 0 if step < 0 else low, high)
    last = _clamped(node, _from_begin(node, end, size), low, high)
    length = _length(facts, first, last, step)
    is_inside = step > 0 and facts.are_equal(length, facts.simplified((last - first + step - 1) // step))
    return _Cut(axis, first, last, step, length, is_inside)


def _from_begin(node: Node, index: Size, size: Size) -> Size:
    """Return an index that counts from the end of an axis where it is negative, counted from its begin."""
    if isinstance(index, int):
        if abs(index) >= FARTHEST:  # beyond any axis: numbers of 64 bits would overflow
            return size if index > 0 else -1 - as_expr(size) if not isinstance(size, int) else -1 - size
        return index if index >= 0 else node.facts.simplified(index + size)
    is_negative = node.facts.proves(index < 0)
    if is_negative is None:
        return choice(index < 0, index + size, index)
    return node.facts.simplified(index + size) if is_negative else index


def _clamped(node: Node, index: Size, low: Size, high: Size) -> Size:
    return node.facts.larger(node.facts.smaller(index, high), low)


def _length(facts: SizeFacts, start: Size, end: Size, step: int) -> Size:
    """Return the number of elements from a start to before an end, by steps."""
    distance = end - start if step > 0 else start - end
    return facts.larger(facts.simplified((distance + abs(step) - 1) // abs(step)), 0)


def _elements_of_cuts(node: Node, x: relax.Expr, sizes: Sequence[Size], cuts: Sequence[_Cut]) -> relax.Expr:
    """Return the elements of cuts of a tensor: by Relax where it has their sizes right, else by a function."""
    is_open = not all(isinstance(each, int) for cut in cuts for each in (sizes[cut.axis], cut.start, cut.end))
    if not is_open or all(cut.is_inside for cut in cuts):
        axes, begins, steps = ([getattr(cut, name) for cut in cuts] for name in ("axis", "start", "step"))
        # To Relax an end of -1 is the last element, here it is the one before the first.
        ends = [-1 - sizes[cut.axis] if cut.step < 0 and cut.end == -1 else cut.end for cut in cuts]
        return relax.op.strided_slice(x, axes, begins, ends, steps, assume_inbound=is_open) if axes else x
    by_axis = {cut.axis: cut for cut in cuts}
    wanted = [by_axis[axis].length if axis in by_axis else size for axis, size in enumerate(sizes)]

    starts = [by_axis[axis].start if axis in by_axis else 0 for axis in range(len(sizes))]
    strides = [by_axis[axis].step if axis in by_axis else 1 for axis in range(len(sizes))]

    def source(at: Sequence[tirx.Expr], _: object, *starts: tirx.Expr) -> list[tirx.Expr]:
        return [start + i * step for i, start, step in zip(at, starts, strides, strict=True)]

    is_reversed = any(step < 0 for step in strides)
    return gathered(node.builder, x, wanted, source, "taken", *starts, is_fused=not is_reversed)
