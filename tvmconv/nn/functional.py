"""Depthwise convolutions as functions on tensors, with gradients to any order."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from tvmconv.problem.errors import TensorError
from tvmconv.problem.parameters import same_total
from tvmconv.runtime.torch import plain
from tvmconv.runtime.torch.library import fixed_shape, is_exported

from .arguments import Size, is_autocast_enabled, narrowed, numbers, require_tensors, sides_of
from .operators import depthwise
from .sequences import causal_conv1d_fn, causal_conv1d_update

__all__ = [
    "causal_conv1d",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "depthwise_conv1d",
    "depthwise_conv2d",
    "depthwise_conv2d_same",
]


def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
) -> Tensor:
    """Convolve each channel of x (N, C, H, W) or (C, H, W) separately with weight (C * M, 1, R, S), plus bias (C * M,).

    It is `torch.nn.functional.conv2d` with one group for each channel, of float32, float16 or bfloat16, summed in
    float32. `padding` is "valid", "same" for a stride of 1, a number, a pair (vertical, horizontal), or (top, left,
    bottom, right). Under autocast x and weight are brought to its type. The result is in channels_last where x is, else
    contiguous. Raises `TensorError` for an argument that is wrong.

    >>> import torch
    >>> from tvmconv.nn import functional
    >>> x, weight = torch.randn(2, 8, 14, 14), torch.randn(8, 1, 3, 3, requires_grad=True)
    >>> y = functional.depthwise_conv2d(x, weight, stride=2, padding=1)
    >>> y.sum().backward()
    >>> y.shape, weight.grad.shape
    (torch.Size([2, 8, 7, 7]), torch.Size([8, 1, 3, 3]))
    """
    if has_torch_function((x, weight, bias)):  # as in torch.fx.symbolic_trace
        arguments = x, weight, bias, stride, padding, dilation
        return handle_torch_function(depthwise_conv2d, (x, weight, bias), *arguments)
    require_tensors(x, weight, bias, 4)
    strides, dilations = numbers("stride", stride, 2), numbers("dilation", dilation, 2)
    sides = sides_of(padding, weight, strides, dilations)
    rank = x.dim()
    if rank != 4:
        if rank != 3:
            raise TensorError("x", tuple(x.shape), "the shape (N, C, H, W) or (C, H, W)")
        return depthwise_conv2d(x.unsqueeze(0), weight, bias, strides, sides, dilations).squeeze(0)
    if is_autocast_enabled():
        x, weight = narrowed(x, weight)
    return (plain.depthwise if is_exported() else depthwise)(x, weight, bias, (*strides, *sides, *dilations))


def depthwise_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
) -> Tensor:
    """Convolve each channel of x (N, C, L) or (C, L) separately with weight (C * M, 1, S), plus bias (C * M,).

    `padding` is "valid", "same" for a stride of 1, a number, or a pair (before, after); the rest is as for
    `depthwise_conv2d`. Raises `TensorError` for an argument that is wrong.

    >>> import torch
    >>> from tvmconv.nn import functional
    >>> x, weight = torch.randn(2, 16, 20), torch.randn(16, 1, 4)
    >>> functional.depthwise_conv1d(x, weight, padding=(3, 0)).shape
    torch.Size([2, 16, 20])
    """
    if has_torch_function((x, weight, bias)):
        arguments = x, weight, bias, stride, padding, dilation
        return handle_torch_function(depthwise_conv1d, (x, weight, bias), *arguments)
    require_tensors(x, weight, bias, 3)
    strides, dilations = numbers("stride", stride, 1), numbers("dilation", dilation, 1)
    before, after = sides_of(padding, weight, strides, dilations)
    if x.dim() not in (2, 3):
        raise TensorError("x", tuple(x.shape), "the shape (N, C, L) or (C, L)")
    sides = 0, before, 0, after
    planes, kernels = x.unsqueeze(-2), weight.unsqueeze(-2)
    return depthwise_conv2d(planes, kernels, bias, (1, *strides), sides, (1, *dilations)).squeeze(-2)


def depthwise_conv2d_same(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, dilation: Size = 1
) -> Tensor:
    """Return `depthwise_conv2d` padded as TensorFlow's SAME: ceil(size / stride) rows and columns of results.

    x is (N, C, H, W) or (C, H, W), weight (C * M, 1, R, S) and bias (C * M,). The odd row or column of padding is at
    the bottom or at the right. Raises `TensorError` for an argument that is wrong.

    >>> import torch
    >>> from tvmconv.nn import functional
    >>> functional.depthwise_conv2d_same(torch.randn(1, 8, 15, 16), torch.randn(8, 1, 3, 3), stride=2).shape
    torch.Size([1, 8, 8, 8])
    """
    if has_torch_function((x, weight, bias)):
        arguments = x, weight, bias, stride, dilation
        return handle_torch_function(depthwise_conv2d_same, (x, weight, bias), *arguments)
    require_tensors(x, weight, bias, 4)
    strides, dilations = numbers("stride", stride, 2), numbers("dilation", dilation, 2)
    totals = [
        same_total(size, taps, step, spread)
        for size, taps, step, spread in zip(x.shape[-2:], fixed_shape(weight)[2:], strides, dilations, strict=True)
    ]
    sides = [total // 2 for total in totals] + [total - total // 2 for total in totals]
    return depthwise_conv2d(x, weight, bias, strides, tuple(sides), dilations)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return `causal_conv1d_fn` of these arguments, which are in another order there.

    x and the result are (B, D, L), weight is (D, K), bias (D,). Raises `TensorError` for an argument that is wrong.

    >>> import torch
    >>> from tvmconv.nn import functional
    >>> x, weight = torch.randn(2, 16, 20), torch.randn(16, 4)
    >>> functional.causal_conv1d(x, weight, None, "silu").shape
    torch.Size([2, 16, 20])
    """
    return causal_conv1d_fn(x, weight, bias, None, initial_states, return_final_states, None, activation)
