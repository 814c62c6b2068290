"""Convolutions of one channel whose windows overlap by whole steps, as in a Fourier transform of frames of sound."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx

from ...graph.constants import constant_value
from ...graph.graph import blocks_of, call_of, rebind

LEAST_OUTPUTS = 16
"""The number of output channels, a vector of float32 numbers, from which steps as channels pay."""


def with_steps_as_channels(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with convolutions of a single channel whose channels are the elements of a step (stride).

    A kernel for a single channel computes vectors of neighbouring outputs, and there are few of these.

    Before: `y = R.nn.conv1d(x, w, strides=[128])`, with x (n, 1, 640) and w (258, 1, 256).
    After: `y = R.nn.conv1d(steps(x), v, strides=[1])`, with steps(x) (n, 128, 5) and v (258, 128, 2).
    """
    values: dict[relax.Var, relax.Expr] = {}
    builder = relax.BlockBuilder(mod)
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (conv := call_of(value, "nn.conv1d")) is not None and (frames := _frames(conv, builder)) is not None:
                values[var] = frames
    return rebind(builder.get(), values) if values else mod


def _frames(conv: relax.Call, builder: relax.BlockBuilder) -> relax.Expr | None:
    """Return the value of a convolution with steps as channels; None if its taps are no whole steps."""
    (x, w), attrs = conv.args, conv.attrs
    weight, (step,) = constant_value(w), map(int, attrs.strides)
    if weight is None or attrs.data_layout != "NCW" or attrs.kernel_layout != "OIW" or x.ty.shape is None:
        return None
    outputs, channels, length = weight.shape
    is_plain = not any(map(int, attrs.padding)) and int(attrs.dilation[0]) == 1 and int(attrs.groups) == 1
    if channels > 1 or outputs < LEAST_OUTPUTS or step < 2 or length % step or not is_plain:
        return None
    taps = length // step
    batch, _, size = x.ty.shape
    count = tirx.floordiv(size - length, step) + taps

    def steps(x: te.Tensor) -> te.Tensor:
        return te.compute(
            (batch, step, count), lambda image, at, turn: x[image, 0, turn * step + at], name="steps", tag="injective"
        )

    by_step = relax.const(weight.reshape(outputs, taps, step).swapaxes(1, 2).copy(), w.ty.dtype)
    in_steps = builder.call_te(steps, x, primfunc_name_hint="steps")
    return relax.op.nn.conv1d(in_steps, by_step, out_dtype=attrs.out_dtype or None)
