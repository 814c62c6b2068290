"""Convolutions with every padding: Relax pads and crops part of it, and operators around do the rest."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tvmconv.network.graph.constants import sizes_of
from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size, as_expr, equal, python_text

from ...builder import convolution
from ...shared.padding import shifted
from ..node import OPEN_HINT, Node
from .windows import SAME, Windows, read_windows, refuse_two_paddings, require_room, same_padding


def conv(node: Node) -> relax.Expr:
    """Convert Conv.

    With auto_pad SAME and a stride, the padding of an open size depends on it: a function pads the images beforehand.
    """
    x, w = node.operands[:2]
    windows, sizes = _windows(node), node.shape_of()
    group = node.attributes.get("group", 1)
    _require_channels(node, group, filters=node.shape_of(1)[0], channels=node.shape_of(1)[1])
    before: list[Size] = list(windows.before)
    after, totals = list(windows.after), list(sizes)
    for axis, (extent, stride) in enumerate(zip(windows.extents, windows.strides, strict=True)):
        size = sizes[axis + 2]
        if windows.auto_pad in SAME:
            first, total = same_padding(node.builder.facts, size, extent, stride, windows.auto_pad == "SAME_UPPER")
            behind = node.builder.facts.simplified(total - size - first)
            if isinstance(first, int) and isinstance(behind, int):
                before[axis], after[axis] = first, max(behind, 0)
            elif extent > 1:
                before[axis], totals[axis + 2] = first, total
        elif node.builder.facts.are_of_inputs(size):  # where numbers decide on it TVM fails to allocate the output
            padded = as_expr(size) + windows.before[axis] + windows.after[axis]
            require_room(node, padded >= extent, extent, size)
    front: list[Size] = [0, 0]
    for axis, (size, total) in enumerate(zip(sizes[2:], totals[2:], strict=True)):
        is_ahead = total is not size
        front.append(before[axis] if is_ahead else 0)
        before[axis] = 0 if is_ahead else before[axis]
    if any(not isinstance(each, int) or each for each in front) or any(
        total is not size for size, total in zip(sizes, totals, strict=True)
    ):
        x = shifted(node.builder, x, front, totals)
    operator = convolution(len(before), is_transposed=False)
    y = operator(x, w, strides=windows.strides, padding=[*before, *after], dilation=windows.dilations, groups=group)
    return _with_bias(node, y)


def conv_transpose(node: Node) -> relax.Expr:
    """Convert ConvTranspose.

    Output padding keeps more of the outputs that kernels reach, as less padding at the end does, and then adds zeros.
    """
    x, w = node.operands[:2]
    windows, sizes = _windows(node), node.shape_of()
    for axis, size in enumerate(sizes[2:], 2):
        node.require(as_expr(size) >= 1, f"needs elements along axis {axis}, which has {python_text(size)}")
    group = node.attributes.get("group", 1)
    _require_channels(node, group, filters=node.shape_of(1)[0], channels=None)
    extents = windows.extents
    more = list(node.attributes.get("output_padding") or [0] * len(extents))
    if len(more) != len(extents) or min(more) < 0:
        raise Refused(f"its output_padding is {more}", f"{len(extents)} numbers of at least 0")
    before, outputs = _cropping(node, windows, sizes[2:], more)
    # Relax crops less than the extent of a kernel; the rest, and open numbers, are cropped after it.
    cropped = [min(n, extent - 1) if isinstance(n, int) else 0 for n, extent in zip(before, extents, strict=True)]
    whole = [
        (size - 1) * stride + extent for size, stride, extent in zip(sizes[2:], windows.strides, extents, strict=True)
    ]
    rests = [
        node.builder.facts.simplified(all_of_it - first - count)
        for all_of_it, first, count in zip(whole, before, outputs, strict=True)
    ]
    ends = [
        max(0, min(n, extent - 1)) if isinstance(n, int) and isinstance(first, int) else 0
        for n, first, extent in zip(rests, before, extents, strict=True)
    ]
    operator = convolution(len(before), is_transposed=True)
    y = operator(x, w, strides=windows.strides, padding=[*cropped, *ends], dilation=windows.dilations, groups=group)
    left = [node.builder.facts.simplified(cut - first) for first, cut in zip(before, cropped, strict=True)]
    fits = [
        isinstance(first, int) and not first and isinstance(n, int) and n == end
        for first, n, end in zip(left, rests, ends, strict=True)
    ]
    if not all(fits):
        y = node.emit(y)
        y = shifted(node.builder, y, [0, 0, *left], [*(sizes_of(y.ty) or ())[:2], *outputs])
    return _with_bias(node, y)


def _windows(node: Node) -> Windows:
    """Return the windows of a convolution; raise `Refused` where its weight and attributes contradict each other."""
    x, w = node.operands[:2]
    if not 3 <= x.ty.ndim <= 5:
        raise Refused(f"{x.ty.ndim - 2} spatial axes are not supported")
    if w.ty.ndim != x.ty.ndim:
        raise Refused(f"its weight has {w.ty.ndim} axes and its input {x.ty.ndim}", "as many axes in both")
    kernel = (sizes_of(w.ty) or ())[2:]
    if len(kernel) != w.ty.ndim - 2 or not all(isinstance(size, int) for size in kernel):
        raise Refused("the size of its windows is known only when the model runs", OPEN_HINT)
    windows = read_windows(node, [int(size) for size in kernel])
    refuse_two_paddings(node, windows)
    return windows


def _require_channels(node: Node, group: int, filters: Size, channels: Size | None) -> None:
    """Require that groups divide the filters, and that images have the channels of the weight.

    A transposed convolution, whose `channels` are None, has as many filters as images have channels.
    """
    if group < 1:
        raise Refused(f"its group is {group}", "a number of at least 1")
    if isinstance(filters, int) and filters % group:
        raise Refused(f"its group {group} does not divide the {filters} channels of its weight", "a group that does")
    wanted = filters if channels is None else channels * group
    images = node.shape_of()[1]
    need = f"needs images of {python_text(wanted)} channels; they have {python_text(images)}"
    node.builder.require(equal(images, wanted), need)


def _with_bias(node: Node, y: relax.Expr) -> relax.Expr:
    """Return the result of a convolution with the node's bias; raise `Refused` for one of another length."""
    if (bias := node.operand(2)) is None:
        return y
    y = node.emit(y)
    channels = (sizes_of(y.ty) or ())[1]
    sizes = sizes_of(bias.ty)
    if sizes is None or len(sizes) != 1:
        raise Refused(f"its bias has {bias.ty.ndim} axes", "a bias with one")
    need = f"needs a bias of {python_text(channels)} numbers; it has {python_text(sizes[0])}"
    node.builder.require(equal(sizes[0], channels), need)
    return relax.op.add(y, relax.op.reshape(bias, [1, -1] + [1] * (y.ty.ndim - 2)))


def _cropping(
    node: Node, windows: Windows, sizes: Sequence[Size], more: Sequence[int]
) -> tuple[list[Size], list[Size]]:
    """Return the number of elements to crop in front, and the number of outputs, of each axis.

    ONNX's specification derives them from output_shape or auto_pad where these are given.
    """
    wanted, facts = node.attributes.get("output_shape"), node.builder.facts
    axes = len(sizes)
    if wanted and len(wanted) < axes:
        raise Refused(f"its output_shape {list(wanted)} is too short", f"{axes} numbers")
    before: list[Size] = []
    outputs: list[Size] = []
    for axis, (size, stride, extent) in enumerate(zip(sizes, windows.strides, windows.extents, strict=True)):
        reached = (size - 1) * stride + extent + more[axis]
        if not wanted and windows.auto_pad not in SAME:
            before.append(windows.before[axis])
            outputs.append(facts.simplified(reached - windows.before[axis] - windows.after[axis]))
            continue
        # Without an output_shape, as large as the input, times the stride.
        count = size * stride if not wanted else int(wanted[axis - axes])
        less = facts.simplified(reached - count)
        less = max(less, 0) if isinstance(less, int) else tirx.max(less, as_expr(0))
        before.append(facts.simplified(less // 2 if windows.auto_pad == "SAME_UPPER" else less - less // 2))
        outputs.append(count)
    return before, outputs
