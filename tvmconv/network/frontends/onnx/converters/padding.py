"""The converter of Pad."""

from __future__ import annotations

from tvm import relax

from tvmconv.network.graph.faults import Refused

from ...shared.padding import Padding, padded
from ..node import Node

MODES = ("constant", "edge", "reflect", "wrap")


def pad(node: Node) -> relax.Expr:
    """Convert Pad. What is cropped is so first, and the rest is padded, as in ONNX Runtime."""
    x, mode = node.operands[0], node.text("mode", "constant")
    sizes = node.shape_of()
    if mode not in MODES:
        raise Refused(f"its mode {mode!r} is unknown", f"one of {', '.join(MODES)}")
    if node.opset < 11:
        widths = list(node.attributes.get("pads") or node.attributes.get("paddings") or ())
        value: relax.Expr = relax.const(node.attributes.get("value", 0.0), x.ty.dtype)
    else:
        widths = node.sizes(1, "pads") or []
        value = relax.const(0, x.ty.dtype) if node.operand(2) is None else node.operands[2]
    told = node.constant(3, "axes")
    axes = list(range(len(sizes))) if told is None else [int(axis) for axis in told.reshape(-1)]
    if len(widths) != 2 * len(axes) or not all(-len(sizes) <= axis < len(sizes) for axis in axes):
        raise Refused(f"it has {len(widths)} pads for the axes {axes} of {len(sizes)}", "two pads for each axis")
    paddings = [Padding(0, 0)] * len(sizes)
    for place, axis in enumerate(axes):
        before, after = (node.builder.facts.simplified(widths[each]) for each in (place, place + len(axes)))
        paddings[axis] = Padding(before, after)
    return padded(node.builder, x, paddings, mode, value)
