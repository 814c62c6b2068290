"""Depthwise convolutions as functions on tensors, with gradients to any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..parameters import is_integer
from . import causal
from .operators import depthwise

Size = int | Sequence[int]


def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
) -> Tensor:
    """Convolve each channel of x (N, C, H, W) or (C, H, W) by itself with weight (C * M, 1, R, S), plus bias (C * M,).

    It is `torch.nn.functional.conv2d` with as many groups as channels, of float32, float16 or bfloat16, summed in
    float32. `padding` is "valid", "same" for a stride of 1, a number, a pair (vertical, horizontal), or (top, left,
    bottom, right). Under autocast x and weight are brought to its type. The result is in channels_last where x is,
    else contiguous.
    """
    _require_rank(weight, 4)
    strides, dilations = _numbers("stride", stride, 2), _numbers("dilation", dilation, 2)
    sides = _sides(padding, weight, strides, dilations)
    if x.dim() not in (3, 4):
        raise RuntimeError(f"x has {x.dim()} dimensions; expected (N, C, H, W) or (C, H, W)")
    batched = x.unsqueeze(0) if x.dim() == 3 else x
    result = depthwise(*_narrowed(batched, weight), bias, (*strides, *sides, *dilations))
    return result.squeeze(0) if x.dim() == 3 else result


def depthwise_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
) -> Tensor:
    """Convolve each channel of x (N, C, L) or (C, L) by itself with weight (C * M, 1, S), plus bias (C * M,).

    `padding` is "valid", "same" for a stride of 1, a number, or a pair (before, after); the rest is as for
    `depthwise_conv2d`.
    """
    _require_rank(weight, 3)
    strides, dilations = _numbers("stride", stride, 1), _numbers("dilation", dilation, 1)
    before, after = _sides(padding, weight, strides, dilations)
    if x.dim() not in (2, 3):
        raise RuntimeError(f"x has {x.dim()} dimensions; expected (N, C, L) or (C, L)")
    sides = 0, before, 0, after
    planes, kernels = x.unsqueeze(-2), weight.unsqueeze(-2)
    return depthwise_conv2d(planes, kernels, bias, (1, *strides), sides, (1, *dilations)).squeeze(-2)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each channel of x (B, D, L) by itself with weight (D, K), plus bias (D,), with no look ahead: (B, D, L).

    In front of x are the `initial_states` (B, D, K - 1), else zeros. `activation` is None or "silu", also called
    "swish", in the same kernel. With `return_final_states` the last K - 1 elements follow the result, as the initial
    states of what comes next. x may lie as (B, L, D) in memory, as `x.transpose(1, 2)` makes it; the result then does.
    Under autocast all tensors but bias are brought to its type. Arguments and names are those of the package
    `causal_conv1d`.
    """
    silu = _is_silu(activation)
    given, taps, *others = _narrowed(x, weight, *(() if initial_states is None else (initial_states,)))
    states = others[0] if others else None
    result = causal.causal_conv1d(given, taps, bias, states, silu)
    if not return_final_states:
        return result
    reach = weight.shape[1] - 1
    before = given.new_zeros((*given.shape[:2], reach)) if states is None else states
    last = given[..., max(0, given.shape[2] - reach) :]
    return result, torch.cat((before, last), -1)[..., -reach:]


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Go on with `causal_conv1d` by x (B, D), or by several elements (B, D, L), and return the result in that shape.

    `conv_state` (B, D, K - 1 or more) has the last elements before x, and is brought up to those of x, in place. It
    has no gradient.
    """
    silu = _is_silu(activation)
    if x.dim() not in (2, 3):
        raise RuntimeError(f"x has {x.dim()} dimensions; expected (B, D) or (B, D, L)")
    given, taps = _narrowed(x.unsqueeze(-1) if x.dim() == 2 else x, weight)
    result = causal.causal_conv1d_update(given, conv_state, taps, bias, silu)
    return result.squeeze(-1) if x.dim() == 2 else result


def _is_silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation is {activation!r}; expected None, 'silu' or 'swish'")
    return activation is not None


def _require_rank(weight: Tensor, rank: int) -> None:
    if weight.dim() != rank:
        raise RuntimeError(f"weight has {weight.dim()} dimensions; expected {rank}")


def _numbers(name: str, value: Size, count: int) -> tuple[int, ...]:
    """Return so many numbers; a single one stands for all."""
    if type(value) is tuple and len(value) == count:  # as layers have them
        return value
    if is_integer(value):
        return (value,) * count
    if isinstance(value, Sequence) and len(value) in (1, count):
        return tuple(value) * (count // len(value))
    raise ValueError(f"{name} is {value!r}; expected an integer or {count} of them")


def _sides(padding: str | Size, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Return the padding in front of each axis, then that behind each."""
    axes = len(stride)
    if type(padding) is tuple and len(padding) == axes:  # as layers have it
        return padding * 2
    if not isinstance(padding, str):
        if isinstance(padding, Sequence) and len(padding) == 2 * axes:
            return tuple(int(side) for side in padding)
        return _numbers("padding", padding, axes) * 2
    if padding == "valid":
        return (0,) * (2 * axes)
    if padding != "same" or max(stride) > 1:
        expected = "expected 'valid', 'same' for a stride of 1, or integers"
        raise ValueError(f"padding is {padding!r} with the stride {stride}; {expected}")
    totals = [spread * (size - 1) for size, spread in zip(weight.shape[2:], dilation, strict=True)]
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def _narrowed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in the type of autocast, where that is on; a bias may stay in float32."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) for tensor in tensors)
