"""Checks of the arguments of `tvmconv.nn`, and the forms that operators take them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from tvmconv.problem.errors import TensorError
from tvmconv.problem.parameters import is_integer
from tvmconv.runtime.arrays import DEVICE_TYPES
from tvmconv.runtime.torch.library import fixed_shape

Size = int | Sequence[int]

NUMBERS = frozenset({int})
"""The types of numbers that need no further look."""

is_autocast_enabled = torch._C._is_any_autocast_enabled
"""A function that returns whether autocast is on for any device."""


def require_tensors(x: Any, weight: Any, bias: Any, rank: int | None = None, **others: Any) -> None:
    """Refuse arguments that are no tensors, and a weight of another rank. From `bias` on None is allowed."""
    if not isinstance(x, Tensor):
        raise _no_tensor("x", x)
    if not isinstance(weight, Tensor):
        raise _no_tensor("weight", weight)
    if bias is not None and not isinstance(bias, Tensor):
        raise _no_tensor("bias", bias)
    for name, tensor in others.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise _no_tensor(name, tensor)
    if rank is not None and weight.dim() != rank:
        raise TensorError("weight", tuple(weight.shape), f"a shape of {rank} dimensions")


def _no_tensor(name: str, value: Any) -> TensorError:
    return TensorError(name, f"a {type(value).__name__}", "a tensor of torch")


def numbers(name: str, value: Size, count: int) -> tuple[int, ...]:
    """Return one number for each axis; a single number stands for all."""
    if type(value) is tuple and len(value) == count and NUMBERS.issuperset(map(type, value)):  # as in layers
        return cast("tuple[int, ...]", value)
    if type(value) is int or _is_size(value):
        return (cast("int", value),) * count
    if isinstance(value, Sequence) and len(value) in (1, count) and all(map(_is_size, value)):
        return tuple(value) * (count // len(value))
    raise TensorError(name, value, f"an integer or {count} of them")


def _is_size(value: object) -> bool:
    """Return whether a value is an integer, or a size that torch leaves open: `torch.jit` has tensors for these."""
    if isinstance(value, Tensor):
        return torch._C._get_tracing_state() is not None
    return is_integer(value) or isinstance(value, torch.SymInt)


def sides_of(
    padding: str | Size, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the padding in front of each axis, then that behind each."""
    axes = len(stride)
    if type(padding) is tuple and len(padding) == axes and NUMBERS.issuperset(map(type, padding)):  # as in layers
        return padding * 2
    if not isinstance(padding, str):
        if isinstance(padding, Sequence) and len(padding) == 2 * axes and all(map(_is_size, padding)):
            return tuple(cast("Sequence[int]", padding))
        return numbers("padding", padding, axes) * 2
    if padding == "valid":
        return (0,) * (2 * axes)
    if padding != "same" or max(stride) > 1:
        raise TensorError("padding", padding, f"'valid', 'same' for a stride of 1 (it is {stride}), or integers")
    totals = [spread * (size - 1) for size, spread in zip(fixed_shape(weight)[2:], dilation, strict=True)]
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def narrowed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in the type of autocast, where that is on; a bias may stay in float32."""
    kind = tensors[0].device.type
    if kind not in DEVICE_TYPES or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) for tensor in tensors)
