"""An operator of torch: a depthwise causal convolution of sequences, with SiLU in the same kernel.

It is linear except for SiLU, so its gradients are those of `depthwise`, on planes of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from tvmconv.problem.errors import TensorError
from tvmconv.runtime.torch import plain
from tvmconv.runtime.torch.library import Gradients, define, define_without_gradients

from .operators import (
    Sizes,
    convolved,
    empty,
    gradients_by,
    input_gradient,
    require_alike,
    require_bias,
    require_on,
    weight_gradient,
)


def _padded(before: int) -> tuple[int, ...]:
    """Return the options of a convolution of planes of one row with `before` zeros in front of each row."""
    return 1, 1, 0, before, 0, 0, 1, 1


def _causal_conv1d(x: Tensor, w: Tensor, bias: Tensor | None, states: Tensor | None, silu: bool) -> Tensor:
    require_sequences(x, w, bias, states)
    reach, length = w.shape[1] - 1, x.shape[2]
    if not x.numel():
        return in_planes(empty(planes(x), planes(x).shape))
    result = _convolved(x, w, bias, reach, silu)
    if states is not None and reach:
        head = min(reach, length)  # the first elements are the only ones that read states
        result[..., :head] = _convolved(torch.cat((states, x[..., :head]), -1), w, bias, 0, silu)
    return result


def _causal_conv1d_fake(x: Tensor, w: Tensor, bias: Tensor | None, states: Tensor | None, silu: bool) -> Tensor:
    require_sequences(x, w, bias, states)
    return in_planes(empty(planes(x), planes(x).shape))


def _convolved(x: Tensor, w: Tensor, bias: Tensor | None, before: int, silu: bool) -> Tensor:
    """Return the convolution of x with `before` zeros in front of it, computed by a kernel."""
    check = partial(require_sequences, x, w, bias, None)
    activation = "silu" if silu else None
    return in_planes(convolved(check, planes(x), w[:, None, None], bias, _padded(before), activation))


def planes(x: Tensor) -> Tensor:
    """Return sequences (B, D, L) as planes (B, D, 1, L); those that lie as (B, L, D) are in channels_last."""
    return x.unsqueeze(-2)


def in_planes(x: Tensor) -> Tensor:
    """Return the sequences (B, D, L) in planes (B, D, 1, L)."""
    return x.squeeze(-2)


def require_sequences(x: Tensor, w: Tensor, bias: Tensor | None, states: Tensor | None) -> None:
    """Refuse arguments of `causal_conv1d` that do not go together."""
    if x.dim() != 3 or x.shape[1] < 1:
        raise TensorError("x", tuple(x.shape), "the shape (B, D, L), with channels")
    if w.dim() != 2 or w.shape[0] != x.shape[1] or w.shape[1] < 1:
        raise TensorError("weight", tuple(w.shape), f"the shape ({x.shape[1]}, K)")
    require_alike(x=x, weight=w)
    if bias is not None:
        require_bias(bias, x, x.shape[1])
    if states is not None:
        expected = (x.shape[0], x.shape[1], w.shape[1] - 1)
        if tuple(states.shape) != expected:
            raise TensorError("initial_states", tuple(states.shape), f"the shape {expected}")
        require_alike(x=x, initial_states=states)


def _save_inputs(ctx: Any, inputs: Sequence[Any]) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dy: Tensor) -> Gradients:
    x, w, bias, states = ctx.saved_tensors
    by_x, by_w, by_bias, by_states, *_ = ctx.needs_input_grad
    if not dy.numel():
        return (*(None if given is None else torch.zeros_like(given) for given in (x, w, bias, states)), None)
    if ctx.silu:  # the operand of SiLU is computed again: to keep it would take as much memory as x
        dy = torch.ops.aten.silu_backward(dy, causal_conv1d(x, w, bias, states, False))
    reach, weight = w.shape[1] - 1, w[:, None, None]
    found: list[Tensor | None] = [None] * 5
    of_x, of_w = gradients_by((by_x, by_w), planes(dy), planes(x), weight, _padded(reach))
    found[0] = None if of_x is None else in_planes(of_x)
    found[1] = None if of_w is None else of_w[:, 0, 0]
    if by_bias:
        found[2] = dy.sum((0, 2), dtype=bias.dtype)
    if states is not None and (by_w or by_states):
        by_head, found[3] = _by_states(dy, w, states)
        found[1] = found[1] + by_head if by_w else None
    return tuple(found)


def _by_states(dy: Tensor, w: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of the weight's gradient that comes from the states, and the gradient by the states."""
    reach, weight = w.shape[1] - 1, w[:, None, None]
    head = min(reach, dy.shape[2])
    if not head:
        return torch.zeros_like(w), torch.zeros_like(states)
    given = planes(dy[..., :head])
    before = planes(torch.nn.functional.pad(states, (0, head)))
    of_w = weight_gradient(given, before, weight.shape, _padded(0))[:, 0, 0]
    return of_w, in_planes(input_gradient(given, weight, before.shape, _padded(0)))[..., :reach]


def _flops(x: Sizes, w: Sizes) -> int:
    """Return the floating-point operations of a convolution of sequences of this shape."""
    return 2 * prod(x) * w[1]


causal_conv1d = define(
    "causal_conv1d(Tensor x, Tensor w, Tensor? bias, Tensor? states, bool silu) -> Tensor",
    *(_causal_conv1d, _causal_conv1d_fake, _save_inputs, _gradients),
    plain.causal_conv1d,
    lambda x, w, bias, states, silu, out_shape=None: _flops(x, w),
)
"""The operator that returns the convolution (B, D, L) of x with w (D, K), plus bias (D,), in the order of x. The states
(B, D, K - 1) are the elements before x, else zeros."""


def _update(
    x: Tensor, states: Tensor, w: Tensor, bias: Tensor | None, silu: bool, lengths: Tensor | None, rows: Tensor | None
) -> Tensor:
    _require_states(x, states, w, bias, lengths, rows)
    if not x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return plain.updated(_convolved_after_states, x, states, w, bias, silu, lengths, rows)


def _convolved_after_states(sequences: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """Return the convolution of all elements after the first K - 1 of a sequence, computed by a kernel."""
    return _convolved(sequences.contiguous(), w, bias, 0, silu)


def _update_fake(
    x: Tensor, states: Tensor, w: Tensor, bias: Tensor | None, silu: bool, lengths: Tensor | None, rows: Tensor | None
) -> Tensor:
    _require_states(x, states, w, bias, lengths, rows)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _no_gradients(x: Tensor, states: Tensor, w: Tensor, bias: Tensor | None, *_: Any) -> None:
    wanted = {"x": x, "conv_state": states, "weight": w, "bias": bias}
    name = next(name for name, tensor in wanted.items() if tensor is not None and tensor.requires_grad)
    raise TensorError(name, "a tensor that requires grad", "one that does not, or a call under torch.no_grad()")


causal_conv1d_update = define_without_gradients(
    "causal_conv1d_update(Tensor x, Tensor(a!) states, Tensor w, Tensor? bias, bool silu, Tensor? lengths, "
    "Tensor? rows) -> Tensor",
    *(_update, _update_fake, _no_gradients),
    plain.causal_conv1d_update,
    lambda x, states, w, bias, silu, lengths, rows, out_shape=None: _flops(x, w),
)
"""The operator that returns the convolution (B, D, L) of x, which continues the states (B, D, K - 1 or more). It then
stores x in the states: at their end, or in a ring after `lengths` (B,) elements. `rows` (B,) are the indices of each
sequence's states, none where negative."""


def _require_states(
    x: Tensor, states: Tensor, w: Tensor, bias: Tensor | None, lengths: Tensor | None, rows: Tensor | None
) -> None:
    """Refuse arguments of `causal_conv1d_update` that do not go together."""
    require_sequences(x, w, bias, None)
    shape: Sizes = tuple(states.shape)
    batch = x.shape[0] if rows is None else shape[0] if shape else 0
    if len(shape) != 3 or shape[:2] != (batch, x.shape[1]) or shape[2] < max(1, w.shape[1] - 1):
        expected = f"({'N' if rows is not None else batch}, {x.shape[1]}, {max(1, w.shape[1] - 1)} or more)"
        raise TensorError("conv_state", shape, f"the shape {expected}")
    require_alike(x=x, conv_state=states)
    for name, numbers in (("cache_seqlens", lengths), ("conv_state_indices", rows)):
        if numbers is None:
            continue
        require_on(x.device, name, numbers)
        if tuple(numbers.shape) != (x.shape[0],) or numbers.dtype not in (torch.int32, torch.int64):
            value = f"{numbers.dtype} of the shape {tuple(numbers.shape)}"
            raise TensorError(name, value, f"torch.int32 of the shape ({x.shape[0]},)")
