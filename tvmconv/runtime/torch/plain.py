"""The operators of tvmconv in torch, written in torch's own operators, for programs that others import or run.

Arguments and results are those of the operators in `tvmconv.nn`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tvmconv.problem.parameters import is_integer


def depthwise(x: Tensor, w: Tensor, bias: Tensor | None, options: Sequence[int]) -> Tensor:
    """Return the depthwise convolution (N, C * M, Ho, Wo) of x (N, C, H, W) with w (C * M, 1, R, S), plus a bias."""
    x, sides = padded(x, options[2:6])
    return functional.conv2d(x, w, _of_type(bias, x), tuple(options[:2]), sides, tuple(options[6:]), x.shape[1])


def padded(x: Tensor, padding: Sequence[int]) -> tuple[Tensor, tuple[int, int]]:
    """Return x (N, C, H, W) with zeros around it, and the padding (vertical, horizontal) that is left to a convolution.

    `padding` is (top, left, bottom, right). A convolution pads both sides alike, by known numbers.
    """
    top, left, bottom, right = padding
    if all(map(is_integer, padding)) and (top, left) == (bottom, right):
        return x, (top, left)
    return functional.pad(x, (left, right, top, bottom)), (0, 0)


def input_gradient(dy: Tensor, w: Tensor, x_shape: Sequence[int], options: Sequence[int]) -> Tensor:
    """Return the gradient of `depthwise` by x, of the shape `x_shape`, for the gradient dy of its result."""
    return _gradients(dy, dy.new_empty(x_shape), w, options, (True, False))[0]


def weight_gradient(dy: Tensor, x: Tensor, w_shape: Sequence[int], options: Sequence[int]) -> Tensor:
    """Return the gradient of `depthwise` by w, of the shape `w_shape`, for the gradient dy of its result."""
    return _gradients(dy, x, dy.new_empty(w_shape), options, (False, True))[1]


def both_gradients(dy: Tensor, x: Tensor, w: Tensor, options: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the gradients of `depthwise` by x and by w for the gradient dy of its result."""
    return _gradients(dy, x, w, options, (True, True))


def _gradients(
    dy: Tensor, x: Tensor, w: Tensor, options: Sequence[int], wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    stride, (top, left, bottom, right), dilation = options[:2], options[2:6], options[6:]
    padded = functional.pad(x, (left, right, top, bottom))
    by_x, by_w, _ = torch.ops.aten.convolution_backward(
        dy, padded, w, None, stride, (0, 0), dilation, False, (0, 0), x.shape[1], (*wanted, False)
    )
    if wanted[0]:
        by_x = by_x[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return by_x, by_w


def causal_conv1d(x: Tensor, w: Tensor, bias: Tensor | None, states: Tensor | None, silu: bool) -> Tensor:
    """Return the convolution (B, D, L) of x with w (D, K), plus a bias, behind the states (B, D, K - 1) or zeros."""
    extended = functional.pad(x, (w.shape[1] - 1, 0)) if states is None else torch.cat((states, x), -1)
    return _behind(extended, w, bias, silu)


def packed_causal_conv1d(
    x: Tensor, w: Tensor, bias: Tensor | None, states: Tensor | None, number: Tensor, silu: bool
) -> Tensor:
    """Return `causal_conv1d` of sequences that several are packed into: `number` (B, L) has the one of each element.

    An element reads those of its number alone. States are of the number that the first element has; a negative number
    is that of padding, whose results are 0. Sums are in float32.
    """
    history, length = w.shape[1] - 1, x.shape[2]
    first = number[:, :1] if states is not None else number.new_full((x.shape[0], 1), -1)
    numbers = torch.cat((first.expand(-1, history), number), -1)
    extended = functional.pad(x, (history, 0)) if states is None else torch.cat((states, x), -1)
    total = x.new_zeros(x.shape, dtype=torch.float32)
    for tap in range(w.shape[1]):
        reads = (numbers[:, tap : tap + length] == number).unsqueeze(1)
        total = total + torch.where(reads, extended[..., tap : tap + length], 0).float() * w[:, tap, None].float()
    if bias is not None:
        total = total + bias.float()[:, None]
    result = functional.silu(total) if silu else total
    return torch.where((number >= 0).unsqueeze(1), result, 0).to(x.dtype)


def causal_conv1d_update(
    x: Tensor, states: Tensor, w: Tensor, bias: Tensor | None, silu: bool, lengths: Tensor | None, rows: Tensor | None
) -> Tensor:
    """Return the convolution (B, D, L) of x behind states, which x is put into, as `tvmconv.nn` describes."""
    return updated(_behind, x, states, w, bias, silu, lengths, rows)


def updated(
    convolve: Callable[[Tensor, Tensor, Tensor | None, bool], Tensor],
    x: Tensor,
    states: Tensor,
    w: Tensor,
    bias: Tensor | None,
    silu: bool,
    lengths: Tensor | None,
    rows: Tensor | None,
) -> Tensor:
    """Return what `convolve` makes of x with the K - 1 elements in front of it, which states have, and update these."""
    batch, channels, length = x.shape
    ring_length, history = states.shape[2], w.shape[1] - 1
    held = states if rows is None else states[rows.clamp(min=0)]
    if lengths is None:
        extended = torch.cat((held, x), -1)
        new, extended = extended[..., length:], extended[..., ring_length - history :]
    else:
        past = torch.remainder(lengths.long()[:, None] + torch.arange(-history, 0, device=x.device), ring_length)
        extended = torch.cat((held.gather(2, past[:, None].expand(-1, channels, -1)), x), -1)
        end = torch.arange(length - min(length, ring_length), length, device=x.device)  # what a ring has at last
        slots = torch.remainder(lengths.long()[:, None] + end, ring_length)
        new = held.scatter(2, slots[:, None].expand(-1, channels, -1), x[..., end[0] :])
    result = convolve(extended, w, bias, silu)
    if rows is None:
        states.copy_(new)
        return result
    # Padding, whose rows are negative, writes what the first sequence that is none writes; if all are, what was held.
    real = rows >= 0
    source = torch.where(real, torch.arange(batch, device=x.device), real.int().argmax())
    value = torch.where(real.any(), new[source], held[source])
    states.index_put_((rows.long()[source].clamp(min=0),), value)
    return torch.where(real[:, None, None], result, 0)


def _behind(extended: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    result = functional.conv1d(extended, w.unsqueeze(1), _of_type(bias, extended), groups=w.shape[0])
    return functional.silu(result) if silu else result


def _of_type(bias: Tensor | None, x: Tensor) -> Tensor | None:
    """Return a bias in the type of x, the only one that torch takes."""
    return None if bias is None else bias.to(x.dtype)
