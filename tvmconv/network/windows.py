"""A check for windows that cannot slide: Relax takes them, and the built code reads and writes past its arrays."""

from __future__ import annotations

import tvm
from tvm import relax

from ..errors import UnsupportedModelError
from .constants import static_shape
from .graph import blocks_of, operator_name

LEAST = {"strides": 1, "dilation": 1, "padding": 0, "groups": 1}
"""The smallest value of each attribute of convolutions and pooling."""


def require_sliding(mod: tvm.IRModule) -> None:
    """Raise `UnsupportedModelError` for a convolution or a pooling with impossible windows."""
    for block in blocks_of(mod):
        for value in block.values.values():
            name = operator_name(value)
            if name is not None and getattr(value.attrs, "strides", None) is not None:
                _require(name.removeprefix("relax."), value)


def _require(name: str, call: relax.Call) -> None:
    for attribute, least in LEAST.items():
        given = getattr(call.attrs, attribute, least)
        values = [int(given)] if isinstance(given, int) else [int(number) for number in given]
        if any(number < least for number in values):
            raise UnsupportedModelError(f"{name} has {attribute} {values}; expected {least} or more")
    before, after = static_shape(call.args[0].ty), static_shape(call.ty)
    if after is not None and min(after, default=1) < 1 and not (before and 0 in before):
        raise UnsupportedModelError(f"{name} would have the shape {after}; a window is larger than what it slides over")
