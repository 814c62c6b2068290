"""The operators of torch that tvmconv has, defined so that little lies between a call and its kernel.

`torch.library.custom_op` does the same for less code: a call of a tiny convolution by it takes a core of Zen 4 17 µs,
and 32 where gradients are kept for; with what is here, 10 and 17. A depthwise layer makes two such calls in a step of
training, one of which is for both gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Gradients = tuple[Tensor | None, ...]

LIBRARY = torch.library.Library("tvmconv", "DEF")
"""The operators, which torch knows for as long as this object lives."""


def define(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    keep: Callable[[Any, Sequence[Any]], None],
    gradients: Callable[..., Gradients],
) -> Any:
    """Define an operator, none of whose results shares memory with an argument, and return it.

    `compute` makes the results of tensors with data, below autograd; `fake` makes some without data, for tensors that
    have none; both refuse the same arguments. `keep` keeps on a context what `gradients` needs to make the arguments'
    gradients, in order, of those of the results.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    operator = getattr(torch.ops.tvmconv, name).default
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tvmconv::{name}", fake, lib=LIBRARY)
    below = _below_autograd(operator, compute)
    LIBRARY.impl(name, _with_gradients(below, keep, gradients), "Autograd", with_keyset=True)
    return operator


DENSE = {torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr() for name in ("CPU", "CUDA")}
"""The sets of keys of torch's dispatcher, as integers, that say that plain tensors on a CPU or a GPU are at hand."""


def _below_autograd(operator: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that makes the results of arguments below autograd, behind the keys of the dispatcher.

    Where these say that the dispatcher would call `compute` next, as nothing traces, batches or wraps, it does.
    """
    redispatch = operator.redispatch
    keys_of_all, keys_of_tensors = torch._C._after_autograd_keyset, torch._C._after_ADInplaceOrView_keyset

    def below(keys: Any, *arguments: Any) -> Any:
        if (keys & keys_of_tensors).raw_repr() in DENSE:
            return compute(*arguments)
        return redispatch(keys & keys_of_all, *arguments)

    return below


def _with_gradients(
    below: Callable[..., Any],
    keep: Callable[[Any, Sequence[Any]], None],
    gradients: Callable[..., Gradients],
) -> Callable[..., Any]:
    """Return the function that the dispatcher calls for autograd: what gradients need is kept where some are wanted."""
    is_grad_enabled, any_requires_grad = torch._C.is_grad_enabled, torch._C._any_requires_grad

    class Differentiable(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *arguments_and_keys: Any) -> Any:
            *arguments, keys = arguments_and_keys
            keep(ctx, arguments)
            return below(keys, *arguments)

        @staticmethod
        def backward(ctx: Any, *outer: Tensor | None) -> Gradients:
            return *gradients(ctx, *outer), None

    apply = Differentiable.apply

    def call(keys: Any, *arguments: Any) -> Any:
        # Forward-mode derivatives are refused by torch, which would else leave them out.
        if (is_grad_enabled() and any_requires_grad(*arguments)) or forward_ad._current_level >= 0:
            return apply(*arguments, keys)
        return below(keys, *arguments)

    return call
