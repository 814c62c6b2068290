"""The order of a tensor's dimensions in memory, as a value: NCHW, NHWC, or NCHW in blocks of channels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from .errors import InvalidArgumentError

BLOCKED = re.compile(r"NCHW([2-9]|[1-9][0-9]+)c")

ORDERS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "KCRS": (0, 1, 2, 3), "KRSC": (0, 2, 3, 1)}
"""The axes of (N, C, H, W), or of a weight (K, C / groups, R, S), in the order in which a layout has them."""

WEIGHT_LAYOUTS = ("KCRS", "KRSC")
"""The names of layouts of weights; KRSC is what torch calls channels_last."""


@dataclass(frozen=True)
class Layout:
    """A layout of tensors that are logically (N, C, H, W), or (K, C / groups, R, S) for a weight.

    A place is a tuple of indices: a logical one has four, and one in memory has those of the layout.
    """

    name: str
    """The name of its kind: a key of `ORDERS`, or "NCHWc" for blocks of any size."""
    order: tuple[int, int, int, int]
    block: int = 1
    """The number of neighbouring channels that are the last dimension; 1 for a layout without blocks."""

    @property
    def channels(self) -> int:
        """The dimension in memory that is the channel, or the block of channels."""
        return self.order.index(1)

    @property
    def spatial(self) -> tuple[int, int]:
        """The dimensions in memory that are the row and the column."""
        return self.order.index(2), self.order.index(3)

    def shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in memory of a tensor of a logical shape."""
        extents = self.place(*logical)
        return extents if self.block == 1 else (*extents[:-1], self.block)

    def place(self, *logical: Any) -> tuple[Any, ...]:
        """Return the place in memory of a logical one, whose indices may be expressions of TVM."""
        if self.block == 1:
            return tuple(logical[axis] for axis in self.order)
        n, c, *rest = logical
        return (n, c // self.block, *rest, c % self.block)

    def logical(self, *place: Any) -> tuple[Any, Any, Any, Any]:
        """Return the logical place of one in memory."""
        if self.block == 1:
            n, c, h, w = (place[self.order.index(axis)] for axis in range(4))
            return n, c, h, w
        n, c, h, w, inner = place
        return n, c * self.block + inner, h, w


@cache
def data_layout(name: str) -> Layout:
    """Return the layout of x, an output or a residual by its name; raise `ValueError` for a name of none."""
    if name in ("NCHW", "NHWC"):
        return Layout(name, ORDERS[name])
    if blocked := BLOCKED.fullmatch(name):
        return Layout("NCHWc", ORDERS["NCHW"], int(blocked[1]))
    raise ValueError(f"no layout is called {name!r}")


def channel_block(layout: str) -> int:
    """Return the number of channels in a block of a layout; 1 for one without blocks."""
    return data_layout(layout).block


def has_channels_last(layout: str) -> bool:
    """Return whether neighbouring channels of a pixel lie side by side in a layout."""
    return data_layout(layout).order != ORDERS["NCHW"] or channel_block(layout) > 1


@cache
def weight_layout(name: str) -> Layout:
    """Return the layout of a weight by its name, one of `WEIGHT_LAYOUTS`."""
    return Layout(name, ORDERS[name])


def require_layout(name: str, layout: str, channels: int) -> None:
    """Raise `InvalidArgumentError` unless there is the layout, for so many channels."""
    expected = f"'NCHW', 'NHWC', or such as 'NCHW8c', in blocks that divide {channels} channels"
    try:
        block = data_layout(layout).block
    except ValueError:
        raise InvalidArgumentError(name, layout, expected) from None
    if channels % block:
        raise InvalidArgumentError(name, layout, expected)
