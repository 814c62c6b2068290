"""Transposed convolutions with every padding: Relax pads and crops part of it, and operators around do the rest."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from .faults import Refused
from .onnx_node import OPEN_HINT, Node

OPERATORS = {
    3: (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    4: (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
    5: (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}
"""Relax's transposed convolutions and their layouts, by the rank of the operands."""


def conv_transpose(node: Node) -> relax.Expr:
    """Convert ConvTranspose.

    Output padding only leaves more of what the kernels reach, as less padding behind does, and then zeros.
    """
    x, w, bias = node.operands[0], node.operands[1], node.operand(2)
    if x.ty.ndim not in OPERATORS:
        raise Refused(f"{x.ty.ndim - 2} spatial axes are not supported")
    operator, data_layout, kernel_layout = OPERATORS[x.ty.ndim]
    kernel = node.shape(1)[2:]
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    strides, dilations = (node.attributes.get(key) or ones for key in ("strides", "dilations"))
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    more = list(node.attributes.get("output_padding") or zeros)
    before, after = _padding(node, strides, extents, more)
    # Relax crops up to what a single kernel reaches.
    cropped = [min(n, extent - 1) for n, extent in zip(before, extents, strict=True)]
    ends = [max(n - added, 0) for n, added in zip(after, more, strict=True)]
    zeros_behind = [max(added - n, 0) for n, added in zip(after, more, strict=True)]
    cropped_ends = [min(n, extent - 1) for n, extent in zip(ends, extents, strict=True)]
    y = operator(
        x,
        w,
        strides=strides,
        padding=[*cropped, *cropped_ends],
        dilation=dilations,
        groups=node.attributes.get("group", 1),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
    )
    first = [n - m for n, m in zip(before, cropped, strict=True)]
    last = [n - m for n, m in zip(ends, cropped_ends, strict=True)]
    if any(first) or any(last):
        y = node.emit(y)
        axes = list(range(2, x.ty.ndim))
        sizes = [int(size) for size in list(y.ty.shape)[2:]]
        y = relax.op.strided_slice(y, axes, first, [size - n for size, n in zip(sizes, last, strict=True)])
    if any(zeros_behind):
        widths = [0, 0, 0, 0, *(width for n in zeros_behind for width in (0, n))]
        y = relax.op.nn.pad(node.emit(y), widths)
    if bias is not None:
        y = relax.op.add(node.emit(y), relax.op.reshape(bias, [1, -1] + [1] * len(kernel)))
    return y


def _padding(
    node: Node, strides: Sequence[int], extents: Sequence[int], more: list[int]
) -> tuple[list[int], list[int]]:
    """Return the sizes to crop before and behind; add to `more`, the output padding, where the output is to be larger.

    ONNX's specification derives them from output_shape or auto_pad where these are given.
    """
    wanted, auto_pad = node.attributes.get("output_shape"), node.text("auto_pad", "NOTSET")
    if wanted is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        pads = node.attributes.get("pads") if auto_pad == "NOTSET" else None
        pads = list(pads or [0] * 2 * len(extents))
        return pads[: len(extents)], pads[len(extents) :]
    before, after = [], []
    for axis, (stride, extent) in enumerate(zip(strides, extents, strict=True)):
        if wanted is None:  # as large as the input, times the stride
            less = extent + more[axis] - stride
        else:
            size = stride * (_size(node, axis) - 1) + extent + more[axis]
            less = size - wanted[axis - len(extents)]
        more[axis] += max(-less, 0)
        less = max(less, 0)
        first = less // 2 if auto_pad == "SAME_UPPER" else less - less // 2
        before.append(first)
        after.append(less - first)
    return before, after


def _size(node: Node, axis: int) -> int:
    size = node.operands[0].ty.shape[axis + 2]
    if not isinstance(size, tirx.IntImm):
        raise Refused("its output_shape is for an input of known size", OPEN_HINT)
    return int(size)
