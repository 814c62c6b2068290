"""Calls of kernels with tensors of torch: one look-up finds the kernels for tensors that are alike.

`Calls` does so for arrays of any kind; here the tensors have data and lie on a CPU or a GPU, as torch has seen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tvmconv.problem.errors import TensorError
from tvmconv.runtime.arrays import ARGUMENT_FUNCTIONS, Operand, described
from tvmconv.runtime.calls import MAX_CACHED_CALLS, Launch
from tvmconv.support.cache import Cache
from tvmconv.targets import GPU_ALIGNMENT

LAST = torch.channels_last

Result = TypeVar("Result")


def launched(
    prepare: Callable[[list[Operand]], Callable[[list[Any]], Result]],
    about: Hashable,
    names: tuple[str, ...],
    *tensors: Tensor,
) -> Result:
    """Return the result of kernels for tensors, whatever gradients these require.

    `prepare` checks operands, and returns the function that runs kernels on the arguments of tensors like them. `about`
    has everything else that decides on the kernels. `prepare` is called only for a combination of `about` and of
    tensors that is new.
    """
    key, pointers = [about], 0
    try:
        for tensor in tensors:
            key += tensor.shape, tensor.stride(), tensor.dtype, tensor.device
            pointers |= tensor.data_ptr()
    except RuntimeError:
        for name, tensor in zip(names, tensors, strict=False):
            if tensor.layout is not torch.strided:
                raise TensorError(name, tensor.layout, "a dense tensor, of torch.strided") from None
        raise
    known = _known.get(tuple(key))
    arguments = [*tensors]
    if known is None or known.copies or pointers % GPU_ALIGNMENT:
        pairs = zip(names, tensors, strict=False)
        arguments = [ARGUMENT_FUNCTIONS[Tensor](name, tensor.detach())[0] for name, tensor in pairs]
    if known is None:
        operands = [described(name, *pair) for name, *pair in zip(names, tensors, arguments, strict=False)]
        run = prepare(operands)
        known = _known.put(tuple(key), Known(run, not all(map(_needs_no_copy, tensors))))
    return known.run(arguments)  # type: ignore[no-any-return]


def in_order_of(tensor: Tensor, launch: Launch) -> Callable[[list[Any]], Tensor]:
    """Return the function that runs a launch, with a result in the order of a tensor: channels_last or contiguous."""
    if launch.channels_last or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=LAST):
        return launch.run
    return lambda arguments: launch.run(arguments).contiguous(memory_format=LAST)


def _needs_no_copy(tensor: Tensor) -> bool:
    """Return whether a tensor is an argument without a copy: contiguous or in channels_last."""
    return bool(tensor.is_contiguous() or tensor.is_contiguous(memory_format=LAST))


class Known(NamedTuple):
    """The function that has been prepared for tensors that are alike."""

    run: Callable[[list[Any]], Any]
    copies: bool
    """True if tensors are copied first, as one is neither contiguous nor in channels_last."""


_known: Cache[tuple[Hashable, ...], Known] = Cache(MAX_CACHED_CALLS)
"""The functions that have been prepared, by what the tensors are and what else decides on them."""
