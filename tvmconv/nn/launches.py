"""Calls of kernels with tensors of torch: what is the same for tensors that are alike is found by one look-up.

`Calls` does so for arrays of any kind; here the tensors have data and lie on a CPU or a GPU, as torch has seen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

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
    key, orders, pointers = [about], [], 0
    for tensor in tensors:
        order = tensor.is_contiguous() or (tensor.is_contiguous(memory_format=LAST) and LAST)
        orders.append(order)
        key += tensor.shape, tensor.dtype, tensor.device, order
        pointers |= tensor.data_ptr()
    known = _known.get(tuple(key))
    arguments = [tensor.detach() for tensor in tensors]
    if known is None or pointers % GPU_ALIGNMENT or not all(orders):
        taken = zip(names, arguments, strict=False)
        arguments = [TAKERS[Tensor](name, tensor)[0] for name, tensor in taken]
    if known is None:
        operands = [described(name, *pair) for name, *pair in zip(names, tensors, arguments, strict=False)]
        launch = prepare(arguments[0], operands)
        if len(_known) >= KEPT:
            _known.clear()
        known = _known[tuple(key)] = launch, in_order and orders[0] is LAST and not launch.channels_last
    launch, reorders = known
    result = launch.run(arguments)
    return result.contiguous(memory_format=LAST) if reorders else result


_known: dict[tuple[Hashable, ...], tuple[Launch, bool]] = {}
"""The launches that have been prepared, each with True if its results are then brought to channels_last."""
