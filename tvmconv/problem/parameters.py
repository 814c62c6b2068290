"""Conversion of a convolution's parameters from the forms that callers give to those that a workload stores.

Each function raises `InvalidArgumentError` for a value that it does not take.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, TypeGuard, get_args

from .activations import Argument
from .errors import InvalidArgumentError

Padding = Literal["SAME", "VALID"] | int | Sequence[int]
Activation = Argument
PlainLayout = Literal["NCHW", "NHWC"]
"""The layouts that callers give arrays in."""
SparseMode = Literal["auto", "always", "never"]
SPARSE_MODES: tuple[SparseMode, ...] = get_args(SparseMode)
"""The words that say which weights are compiled into their kernels: those with many zeros, all, or none."""


def resolve_padding(
    padding: str | int | Sequence[int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[int, int, int, int]:
    """Return padding, in any of its forms, as (top, left, bottom, right)."""
    if isinstance(padding, str):
        if padding.upper() == "VALID":
            return 0, 0, 0, 0
        if padding.upper() == "SAME":
            before, after = zip(*map(_same_padding, size, kernel, stride, dilation), strict=True)
            return before[0], before[1], after[0], after[1]
    elif is_integer(padding):
        return (int(padding),) * 4
    elif isinstance(padding, Sequence) and all(map(is_integer, padding)):
        if len(padding) == 2:
            return int(padding[0]), int(padding[1]), int(padding[0]), int(padding[1])
        if len(padding) == 4:
            return int(padding[0]), int(padding[1]), int(padding[2]), int(padding[3])
    raise InvalidArgumentError(
        "padding", padding, "'SAME', 'VALID', an integer, a pair of integers, or four (top, left, bottom, right)"
    )


def _same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    if min(kernel, stride, dilation) < 1 or (is_integer(size) and size < 1):
        return 0, 0  # the workload's own checks name what is wrong
    total = same_total(size, kernel, stride, dilation)
    return total // 2, total - total // 2


def same_total(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the elements of padding on both sides of an axis by which `ceil(size / stride)` windows fit.

    Sizes may be symbols: a comparison is made only where the sign of the result depends on them.
    """
    reach = (kernel - 1) * dilation
    if stride == 1:
        return reach
    # Not -(-size // stride): programs that torch.onnx.export makes round such a quotient toward zero.
    total = ((size + stride - 1) // stride - 1) * stride + reach + 1 - size
    return total if reach + 1 >= stride else max(total, 0)


def pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Return two integers; a single one stands for both."""
    if is_integer(value):
        return int(value), int(value)
    if isinstance(value, Sequence) and len(value) == 2 and all(map(is_integer, value)):
        return int(value[0]), int(value[1])
    raise InvalidArgumentError(name, value, "an integer or a pair of integers")


def require_rank(name: str, shape: Sequence[int], rank: int, meaning: str) -> None:
    """Raise `InvalidArgumentError` unless a value is a shape of `rank` dimensions."""
    if not isinstance(shape, Sequence) or len(shape) != rank or not all(map(is_integer, shape)):
        raise InvalidArgumentError(name, shape, f"a shape of {rank} dimensions, {meaning}")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer of any library; True and False are none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def require_positive(name: str, value: object) -> None:
    """Raise `InvalidArgumentError` unless a value is an integer of 1 or more."""
    if not is_integer(value) or value < 1:
        raise InvalidArgumentError(name, value, "an integer of 1 or more")
