"""The windows of ONNX's convolutions and pooling: their attributes, compared with each other, and their padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from tvmconv.network.graph.faults import Refused
from tvmconv.network.sizes.facts import Size, SizeFacts, python_text

from ..node import Node

SAME = ("SAME_UPPER", "SAME_LOWER")
"""The values of auto_pad with which the number of outputs is that of inputs, divided by the stride and rounded up."""


@dataclass(frozen=True)
class Windows:
    """The attributes of a convolution or a pooling, with a number for each spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    """The padding in front, in elements, as the node gives it."""
    after: tuple[int, ...]
    """The padding behind."""
    auto_pad: str

    @property
    def extents(self) -> list[int]:
        """The numbers of elements from the first one of a window to its last one."""
        return [(size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True)]


def require_room(node: Node, has_room: bool | tirx.Expr, extent: int, size: Size) -> None:
    """Require a test of a call's sizes: whether a window fits into an axis of a size with its padding."""
    need = f"has a window of {extent} that is larger than its input of {python_text(size)}, padding included"
    node.builder.require(has_room, need)


def read_windows(node: Node, kernel: Sequence[int]) -> Windows:
    """Return the attributes of a node whose windows have some sizes; raise `Refused` where they disagree."""
    axes, attributes = len(kernel), node.attributes
    for name, count in (("kernel_shape", axes), ("strides", axes), ("dilations", axes), ("pads", 2 * axes)):
        values = attributes.get(name)
        if values and len(values) != count:
            raise Refused(f"its {name} {_text(values)} is for another number of axes than {axes}", f"{count} numbers")
    wanted = attributes.get("kernel_shape")
    if wanted and tuple(wanted) != tuple(kernel):
        raise Refused(
            f"its kernel_shape is {_text(wanted)}, and its weight has windows of {_text(kernel)}", "windows of one size"
        )
    strides, dilations = (tuple(attributes.get(name) or [1] * axes) for name in ("strides", "dilations"))
    pads, auto_pad = tuple(attributes.get("pads") or [0] * 2 * axes), node.text("auto_pad", "NOTSET")
    for name, values, least in (
        ("kernel_shape", kernel, 1),
        ("strides", strides, 1),
        ("dilations", dilations, 1),
        ("pads", pads, 0),
    ):
        if min(values, default=least) < least:
            raise Refused(f"its {name} {_text(values)} has numbers below {least}", f"numbers of at least {least}")
    if auto_pad not in (*SAME, "NOTSET", "VALID"):
        raise Refused(f"its auto_pad {auto_pad!r} is unknown", f"one of {', '.join(SAME)}, VALID and NOTSET")
    if auto_pad != "NOTSET" and "pads" in attributes:
        pads = (0,) * 2 * axes
    return Windows(tuple(kernel), strides, dilations, pads[:axes], pads[axes:], auto_pad)


def refuse_two_paddings(node: Node, windows: Windows) -> None:
    """Raise `Refused` for a convolution with pads beside an auto_pad that says what they are."""
    if windows.auto_pad != "NOTSET" and node.attributes.get("pads") is not None:
        pads = _text(node.attributes["pads"])
        raise Refused(f"it has the pads {pads} beside the auto_pad {windows.auto_pad}", "one of the two")


def same_padding(facts: SizeFacts, size: Size, extent: int, stride: int, is_upper: bool) -> tuple[Size, Size]:
    """Return the padding in front, for auto_pad SAME, and the size with all padding.

    Of an open size both are expressions, unless it makes no difference. `extent` is that of a window, in elements. The
    size with padding is what windows reach: without the last elements where a stride steps over them.
    """
    if stride == 1:
        total: Size = extent - 1
    else:
        rest = extent - 1 - (size - 1) % stride
        total = 0 if extent == 1 else facts.larger(rest, 0)
    before = total // 2 if is_upper else (total + 1) // 2
    return facts.simplified(before), facts.simplified((size - 1) // stride * stride + extent)


def _text(values: Sequence[int]) -> str:
    return str([int(value) for value in values])
