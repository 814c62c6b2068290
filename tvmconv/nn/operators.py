"""Operators of torch: a depthwise convolution and its two gradients, which are each other's gradients too.

All three are linear in either tensor, so the gradient of an operator by one of its tensors is another of these
operators, to any order. A fourth operator computes both gradients at once, as training asks for them: each call costs
the host some time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from tvmconv.problem.dtypes import FLOATS, one_of
from tvmconv.problem.errors import TensorError
from tvmconv.problem.precision import DEFAULT
from tvmconv.runtime import gradients
from tvmconv.runtime import operators as convolutions
from tvmconv.runtime.arrays import Operand, operand, reshaped
from tvmconv.runtime.gradients import Geometry
from tvmconv.runtime.operators import State, present_state
from tvmconv.runtime.torch import plain
from tvmconv.runtime.torch.library import Gradients, define

from .launches import in_order_of, launched

DTYPES = tuple(getattr(torch, name) for name in FLOATS)

Sizes = Sequence[int]
"""Integers, which torch may leave open while it compiles."""

Run = Callable[[list[Any]], Tensor]
"""A function that runs a kernel on arguments, and returns its result."""


def output_shape(x: Sizes, w: Sizes, options: Sizes) -> list[Any]:
    """Return the shape of the convolution of x (N, C, H, W) with w (C * M, 1, R, S); raise `TensorError` for others."""
    stride, padding, dilation = options[:2], options[2:6], options[6:]
    if len(x) != 4 or x[1] < 1:
        raise TensorError("x", tuple(x), "the shape (N, C, H, W), with channels")
    if len(w) != 4 or w[0] < 1 or w[0] % x[1] or w[1] != 1:
        raise TensorError("w", tuple(w), f"the shape ({x[1]} * M, 1, R, S)")
    for name, values, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if min(values) < least:
            raise TensorError(name, tuple(values), f"integers of {least} or more")
    shape = [x[0], w[0]]
    for axis in (0, 1):
        size, window = x[2 + axis] + padding[axis] + padding[2 + axis], dilation[axis] * (w[2 + axis] - 1) + 1
        if x[2 + axis] < 1 or w[2 + axis] < 1 or window > size:
            padded = f"x {tuple(x)}, padded {tuple(padding)}"
            raise TensorError("w", tuple(w), f"a shape that, dilated {tuple(dilation)}, fits {padded}")
        shape.append((size - window) // stride[axis] + 1)
    return shape


def require_alike(**tensors: Tensor) -> None:
    """Refuse tensors that are not all of one type and on one device that there are kernels for, as torch does."""
    (first, given), *others = tensors.items()
    if given.dtype not in DTYPES:
        raise TensorError(first, given.dtype, one_of(FLOATS))
    for name, tensor in others:
        if tensor.dtype != given.dtype:
            raise TensorError(name, tensor.dtype, f"{given.dtype}, as {first} is")
        require_on(given.device, name, tensor)


def require_on(device: torch.device, name: str, tensor: Tensor) -> None:
    """Refuse a tensor on another device than the one that others are on."""
    if tensor.device != device:
        raise TensorError(name, f"on {tensor.device}", f"a tensor on {device}, as other tensors are")


def require_bias(bias: Tensor, x: Tensor, channels: int) -> None:
    """Refuse a bias that is not one number for each channel of the output, in the type of x or in float32."""
    if bias.dim() != 1 or bias.shape[0] != channels:
        raise TensorError("bias", tuple(bias.shape), f"the shape ({channels},)")
    if bias.dtype not in (x.dtype, torch.float32):
        raise TensorError("bias", bias.dtype, f"{x.dtype}, as x is, or torch.float32")
    require_on(x.device, "bias", bias)


def geometry(x: Sizes, w: Sizes, options: Sizes) -> Geometry:
    """Return the shapes and parameters of a convolution, whose weight torch has as (C * M, 1, R, S)."""
    sh, sw, top, left, bottom, right, dh, dw = options
    return Geometry(tuple(x), (x[1], w[0] // x[1], w[2], w[3]), (sh, sw), (top, left, bottom, right), (dh, dw))


def empty(like: Tensor, shape: Sizes) -> Tensor:
    """Return a tensor of a shape without values, in the order of another: in channels_last, or else contiguous."""
    is_last = not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=order)


OPTIONS = "int[8] options"
"""The last argument of each operator, one list since each costs a call a microsecond: the stride (vertical,
horizontal), the padding (top, left, bottom, right) and the dilation (vertical, horizontal)."""


def _depthwise(x: Tensor, w: Tensor, bias: Tensor | None, options: Sizes) -> Tensor:
    if not x.numel():
        return _depthwise_fake(x, w, bias, options)
    return convolved(lambda: _depthwise_shape(x, w, bias, options), x, w, bias, options)


def convolved(
    check: Callable[[], object],
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    options: Sizes,
    activation: str | None = None,
) -> Tensor:
    """Return a depthwise convolution, computed by a kernel; `check`, which refuses tensors, runs for new kinds only."""
    state = present_state()
    about = "depthwise", *options, activation, state

    def prepare(operands: list[Operand]) -> Run:
        check()
        _, _, *known = geometry(x.shape, w.shape, options)
        call = "conv2d", (*known, activation, x.shape[1]), (), "auto", DEFAULT, None, state
        return in_order_of(x, convolutions.prepare(call, operands[0].argument, operands))

    tensors = (x, w) if bias is None else (x, w, bias)
    return launched(prepare, about, ("x", "w", "shift"), *tensors)


def _depthwise_fake(x: Tensor, w: Tensor, bias: Tensor | None, options: Sizes) -> Tensor:
    return empty(x, _depthwise_shape(x, w, bias, options))


def _depthwise_shape(x: Tensor, w: Tensor, bias: Tensor | None, options: Sizes) -> list[Any]:
    """Check the arguments of `depthwise` and return the shape of its result."""
    require_alike(x=x, w=w)
    shape = output_shape(x.shape, w.shape, options)
    if bias is not None:
        require_bias(bias, x, w.shape[0])
    return shape


def _input_gradient(dy: Tensor, w: Tensor, x_shape: Sizes, options: Sizes) -> Tensor:
    if not dy.numel():
        return _input_gradient_fake(dy, w, x_shape, options)
    state = present_state()

    def prepare(operands: list[Operand]) -> Run:
        return _by_input(dy, w, x_shape, options, state, operands)

    return launched(prepare, ("input", *x_shape, *options, state), ("dy", "w"), dy, w)


def _by_input(dy: Tensor, w: Tensor, x_shape: Sizes, options: Sizes, state: State, operands: list[Operand]) -> Run:
    """Return the function that computes the gradient by the input, for arguments dy and w like these."""
    _require_gradient(dy, "w", w, x_shape, w.shape, options)
    known = geometry(x_shape, w.shape, options)
    given, weight = operands
    conversions = []
    if weight.shape != known.w_shape:
        by_channels = partial(reshaped, shape=known.w_shape)
        conversions.append((1, by_channels))
        weight = operand("w", by_channels(weight.argument))
    launch = gradients.prepare(("input_gradient", known, state), given.argument, [given, weight])
    return in_order_of(dy, replace(launch, conversions=(*conversions, *launch.conversions)))


def _input_gradient_fake(dy: Tensor, w: Tensor, x_shape: Sizes, options: Sizes) -> Tensor:
    _require_gradient(dy, "w", w, x_shape, w.shape, options)
    return empty(dy, x_shape)


def _weight_gradient(dy: Tensor, x: Tensor, w_shape: Sizes, options: Sizes) -> Tensor:
    if not dy.numel():
        return _weight_gradient_fake(dy, x, w_shape, options).zero_()
    state = present_state()

    def prepare(operands: list[Operand]) -> Run:
        return _by_weight(dy, x, w_shape, options, state, operands)

    return launched(prepare, ("weight", *w_shape, *options, state), ("dy", "x"), dy, x)


def _by_weight(dy: Tensor, x: Tensor, w_shape: Sizes, options: Sizes, state: State, operands: list[Operand]) -> Run:
    """Return the function that computes the gradient by the weight, for arguments dy and x like these."""
    _require_gradient(dy, "x", x, x.shape, w_shape, options)
    known = geometry(x.shape, w_shape, options)
    launch = gradients.prepare(("weight_gradient", known, state), operands[0].argument, operands)
    if known.w_shape == tuple(w_shape):
        return launch.run
    return lambda arguments: launch.run(arguments).reshape(w_shape)


def _weight_gradient_fake(dy: Tensor, x: Tensor, w_shape: Sizes, options: Sizes) -> Tensor:
    _require_gradient(dy, "x", x, x.shape, w_shape, options)
    return dy.new_empty(w_shape)


def _both_gradients(dy: Tensor, x: Tensor, w: Tensor, options: Sizes) -> tuple[Tensor, Tensor]:
    if not dy.numel():
        return _input_gradient(dy, w, x.shape, options), _weight_gradient(dy, x, w.shape, options)
    state = present_state()

    def prepare(operands: list[Operand]) -> Callable[[list[Any]], tuple[Tensor, Tensor]]:
        given, image, weight = operands
        by_input = _by_input(dy, w, x.shape, options, state, [given, weight])
        by_weight = _by_weight(dy, x, w.shape, options, state, [given, image])
        return lambda arguments: (by_input([arguments[0], arguments[2]]), by_weight(arguments[:2]))

    return launched(prepare, ("both", *options, state), ("dy", "x", "w"), dy, x, w)


def _both_gradients_fake(dy: Tensor, x: Tensor, w: Tensor, options: Sizes) -> tuple[Tensor, Tensor]:
    return _input_gradient_fake(dy, w, x.shape, options), _weight_gradient_fake(dy, x, w.shape, options)


def _require_gradient(dy: Tensor, name: str, other: Tensor, x: Sizes, w: Sizes, options: Sizes) -> None:
    """Refuse a gradient dy of another shape than the convolution's output, or unlike the other tensor."""
    shape = output_shape(x, w, options)
    if dy.dim() != 4 or any(size != expected for size, expected in zip(dy.shape, shape, strict=True)):
        raise TensorError("dy", tuple(dy.shape), f"the shape {tuple(shape)}")
    require_alike(**{"dy": dy, name: other})


def _keep_depthwise(ctx: Any, inputs: Sequence[Any]) -> None:
    x, w, bias, ctx.options = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, w)


def _save_inputs(ctx: Any, inputs: Sequence[Any]) -> None:
    """Keep both tensors of a gradient operator, and its other arguments, for the gradients of that operator."""
    first, second, _, ctx.options = inputs
    ctx.save_for_backward(first, second)


def _keep_both(ctx: Any, inputs: Sequence[Any]) -> None:
    dy, x, w, ctx.options = inputs
    ctx.save_for_backward(dy, x, w)
    ctx.set_materialize_grads(False)


def gradients_by(
    needed: Sequence[bool], dy: Tensor, x: Tensor, w: Tensor, options: Sizes
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of `depthwise` by x and by w that are needed, for the gradient dy of its result."""
    by_x, by_w = needed
    if by_x and by_w:
        return both_gradients(dy, x, w, options)  # type: ignore[no-any-return]
    return (
        input_gradient(dy, w, x.shape, options) if by_x else None,
        weight_gradient(dy, x, w.shape, options) if by_w else None,
    )


def _of_depthwise(ctx: Any, dy: Tensor) -> Gradients:
    x, w = ctx.saved_tensors
    needed = ctx.needs_input_grad
    by_bias = dy.sum((0, 2, 3), dtype=ctx.bias_dtype) if needed[2] else None
    return *gradients_by(needed[:2], dy, x, w, ctx.options), by_bias, None


def _of_input_gradient(ctx: Any, g: Tensor) -> Gradients:
    dy, w = ctx.saved_tensors
    by_dy = depthwise(g, w, None, ctx.options) if ctx.needs_input_grad[0] else None
    by_w = weight_gradient(dy, g, w.shape, ctx.options) if ctx.needs_input_grad[1] else None
    return by_dy, by_w, None, None


def _of_weight_gradient(ctx: Any, g: Tensor) -> Gradients:
    dy, x = ctx.saved_tensors
    by_dy = depthwise(x, g, None, ctx.options) if ctx.needs_input_grad[0] else None
    by_x = input_gradient(dy, g, x.shape, ctx.options) if ctx.needs_input_grad[1] else None
    return by_dy, by_x, None, None


def _of_both(ctx: Any, of_x: Tensor | None, of_w: Tensor | None) -> Gradients:
    """Return the gradients of both gradients, of which one may not have been used."""
    dy, x, w = ctx.saved_tensors
    needed = ctx.needs_input_grad
    by_dy = by_x = by_w = None
    if of_x is not None:
        by_dy = depthwise(of_x, w, None, ctx.options) if needed[0] else None
        by_w = weight_gradient(dy, of_x, w.shape, ctx.options) if needed[2] else None
    if of_w is not None:
        if needed[0]:
            more = depthwise(x, of_w, None, ctx.options)
            by_dy = more if by_dy is None else by_dy + more
        by_x = input_gradient(dy, of_w, x.shape, ctx.options) if needed[1] else None
    return by_dy, by_x, by_w, None


def _flops(result: Sizes, w: Sizes) -> int:
    """Return the floating-point operations of a convolution with this result: a product and a sum for each tap."""
    return 2 * prod(result) * prod(w[1:])


depthwise = define(
    f"depthwise(Tensor x, Tensor w, Tensor? bias, {OPTIONS}) -> Tensor",
    *(_depthwise, _depthwise_fake, _keep_depthwise, _of_depthwise),
    plain.depthwise,
    lambda x, w, bias, options, out_shape=None: _flops(out_shape, w),
)
"""The operator that returns the convolution (N, C * M, Ho, Wo) of x (N, C, H, W) with w (C * M, 1, R, S), plus bias
(C * M,), in the order of x, channels_last or contiguous."""

input_gradient = define(
    f"depthwise_input_gradient(Tensor dy, Tensor w, SymInt[4] x_shape, {OPTIONS}) -> Tensor",
    *(_input_gradient, _input_gradient_fake, _save_inputs, _of_input_gradient),
    plain.input_gradient,
    lambda dy, w, x_shape, options, out_shape=None: _flops(dy, w),
)
"""The operator that returns the gradient of `depthwise` by x, of that shape, for the gradient dy of its result, in the
order of dy."""

weight_gradient = define(
    f"depthwise_weight_gradient(Tensor dy, Tensor x, SymInt[4] w_shape, {OPTIONS}) -> Tensor",
    *(_weight_gradient, _weight_gradient_fake, _save_inputs, _of_weight_gradient),
    plain.weight_gradient,
    lambda dy, x, w_shape, options, out_shape=None: _flops(dy, w_shape),
)
"""The operator that returns the gradient of `depthwise` by w, of that shape, for the gradient dy of its result."""

both_gradients = define(
    f"depthwise_gradients(Tensor dy, Tensor x, Tensor w, {OPTIONS}) -> (Tensor, Tensor)",
    *(_both_gradients, _both_gradients_fake, _keep_both, _of_both),
    plain.both_gradients,
    lambda dy, x, w, options, out_shape=None: 2 * _flops(dy, w),
)
"""The operator that returns the gradients of `depthwise` by x and by w, for the gradient dy of its result, as
`input_gradient` and `weight_gradient` do."""
