"""Depthwise convolutions as functions on tensors, with gradients to any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..parameters import is_integer
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
    bottom, right). Under autocast x and weight are brought to its type. The result is contiguous.
    """
    kernel = _spatial(weight, 2)
    strides, dilations = _numbers("stride", stride, 2), _numbers("dilation", dilation, 2)
    sides = _sides(padding, kernel, strides, dilations)
    if x.dim() not in (3, 4):
        raise RuntimeError(f"x has {x.dim()} dimensions; expected (N, C, H, W) or (C, H, W)")
    batched = x.unsqueeze(0) if x.dim() == 3 else x
    result = depthwise(*_narrowed(batched, weight), bias, strides, sides, dilations)
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
    kernel = _spatial(weight, 1)
    strides, dilations = _numbers("stride", stride, 1), _numbers("dilation", dilation, 1)
    before, after = _sides(padding, kernel, strides, dilations)
    if x.dim() not in (2, 3):
        raise RuntimeError(f"x has {x.dim()} dimensions; expected (N, C, L) or (C, L)")
    sides = 0, before, 0, after
    planes, kernels = x.unsqueeze(-2), weight.unsqueeze(-2)
    return depthwise_conv2d(planes, kernels, bias, (1, *strides), sides, (1, *dilations)).squeeze(-2)


def _spatial(weight: Tensor, axes: int) -> Sequence[int]:
    """Return the last sizes of a weight, of so many axes behind two others."""
    if weight.dim() != 2 + axes:
        raise RuntimeError(f"weight has {weight.dim()} dimensions; expected {2 + axes}")
    return tuple(weight.shape[2:])


def _numbers(name: str, value: Size, count: int) -> tuple[int, ...]:
    """Return so many numbers; a single one stands for all."""
    if is_integer(value):
        return (value,) * count
    if isinstance(value, Sequence) and len(value) in (1, count):
        return tuple(value) * (count // len(value))
    raise ValueError(f"{name} is {value!r}; expected an integer or {count} of them")


def _sides(
    padding: str | Size, kernel: Sequence[int], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the padding in front of each axis, then that behind each."""
    axes = len(kernel)
    if not isinstance(padding, str):
        if isinstance(padding, Sequence) and len(padding) == 2 * axes:
            return tuple(int(side) for side in padding)
        return _numbers("padding", padding, axes) * 2
    if padding == "valid":
        return (0,) * (2 * axes)
    if padding != "same" or max(stride) > 1:
        expected = "expected 'valid', 'same' for a stride of 1, or integers"
        raise ValueError(f"padding is {padding!r} with the stride {stride}; {expected}")
    totals = [spread * (size - 1) for size, spread in zip(kernel, dilation, strict=True)]
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def _narrowed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in the type of autocast, where that is on; a bias may stay in float32."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, weight
    dtype = torch.get_autocast_dtype(kind)
    return x.to(dtype), weight.to(dtype)
