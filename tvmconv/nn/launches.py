"""Calls of kernels with tensors of torch: what is the same for tensors that are alike is found by one look-up.

`Calls` does so for arrays of any kind; here the tensors have data and lie on a CPU or a GPU, as torch has seen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from ..arrays import TAKERS, Operand, described
from ..calls import KEPT, Launch
from ..targets import GPU_ALIGNMENT

LAST = torch.channels_last


def launched(
    prepare: Callable[[Tensor, list[Operand]], Launch],
    about: Hashable,
    names: tuple[str, ...],
    *tensors: Tensor,
    in_order: bool = False,
) -> Tensor:
    """Return the result of a kernel; `in_order` asks for the order of the first tensor, contiguous or channels_last.

    `prepare` checks operands and returns the launch for tensors like them, from the first of them; it is called where
    neither `about`, all else that decides on the launch, nor such tensors have been met.
    """
    key, arguments, pointers = [about], [], 0
    for tensor in tensors:
        key += tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        pointers |= tensor.data_ptr()
        arguments.append(tensor.detach() if tensor.requires_grad else tensor)
    known = _known.get(tuple(key))
    if known is None or known.copies or pointers % GPU_ALIGNMENT:
        taken = zip(names, arguments, strict=False)
        arguments = [TAKERS[Tensor](name, tensor)[0] for name, tensor in taken]
    if known is None:
        operands = [described(name, *pair) for name, *pair in zip(names, tensors, arguments, strict=False)]
        launch = prepare(arguments[0], operands)
        orders = [tensor.is_contiguous() or (tensor.is_contiguous(memory_format=LAST) and LAST) for tensor in tensors]
        if len(_known) >= KEPT:
            _known.clear()
        reorders = in_order and orders[0] is LAST and not launch.channels_last
        known = _known[tuple(key)] = Known(launch, not all(orders), reorders)
    result = known.launch.run(arguments)
    return result.contiguous(memory_format=LAST) if known.reorders else result


class Known(NamedTuple):
    """The launch for tensors that are alike, and what lies around it."""

    launch: Launch
    copies: bool
    """True if tensors are copied first, as one is neither contiguous nor in channels_last."""
    reorders: bool
    """True if the result is then brought to channels_last."""


_known: dict[tuple[Hashable, ...], Known] = {}
"""The launches that have been prepared, by what the tensors are and what else decides on them."""
