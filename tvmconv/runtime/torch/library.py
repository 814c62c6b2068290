"""The operators of torch that tvmconv defines, with little overhead between a call and its kernel.

`torch.library.custom_op` does the same with less code: a call of a tiny convolution by it takes a core of Zen 4 17 µs,
and 32 where gradients are prepared; with this file, 10 and 17. A depthwise layer makes two such calls in a step of
training, one of which is for both gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from tvmconv.problem.errors import TensorError

Gradients = tuple[Tensor | None, ...]

LIBRARY = torch.library.Library("tvmconv", "DEF")
"""The operators, which torch knows for as long as this object lives."""

PLAIN: dict[Any, Callable[..., Any]] = {}
"""For each operator of tvmconv the function that computes it by torch's own operators.

They are decompositions: a graph that has tvmconv's operators becomes one that any importer of torch's graphs takes.
"""


def define(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    keep: Callable[[Any, Sequence[Any]], None],
    gradients: Callable[..., Gradients],
    plain: Callable[..., Any],
    flops: Callable[..., int],
) -> Any:
    """Define an operator, none of whose results shares memory with an argument, and return it.

    `compute` makes the results of tensors with data, below autograd; `fake` makes results without data, for tensors
    that have none; both refuse the same arguments. `keep` stores on a context what `gradients` needs to make the
    arguments' gradients, in order, from those of the results. `plain` computes the results in torch's own operators.
    `flops` returns the number of floating-point operations, two for each product that is added up, from the arguments
    with shapes instead of tensors.
    """
    operator, below = _declared(schema, compute, fake, plain, flops)
    LIBRARY.impl(_name(schema), _with_gradients(below, keep, gradients), "Autograd", with_keyset=True)
    return operator


def define_without_gradients(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    refuse: Callable[..., None],
    plain: Callable[..., Any],
    flops: Callable[..., int],
) -> Any:
    """Define an operator without gradients and return it: `refuse` raises for arguments that require gradients.

    The rest is as for `define`.
    """
    operator, below = _declared(schema, compute, fake, plain, flops)

    def call(keys: Any, *arguments: Any) -> Any:
        if torch._C.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            refuse(*arguments)
        return below(keys, *arguments)

    LIBRARY.impl(_name(schema), call, "Autograd", with_keyset=True)
    return operator


def _name(schema: str) -> str:
    return schema.partition("(")[0]


def _declared(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    plain: Callable[..., Any],
    flops: Callable[..., int],
) -> tuple[Any, Callable[..., Any]]:
    """Declare an operator without autograd; return it and the function that makes its results below autograd."""
    name = _name(schema)
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    packet = getattr(torch.ops.tvmconv, name)
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tvmconv::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"tvmconv::{name}", _one_by_one(packet.default), lib=LIBRARY)
    register_flop_formula(packet)(flops)
    for mode in _get_current_dispatch_mode_stack():  # an active counter has a copy of the formulas, without this one
        counter = getattr(mode, "counter", None)
        if isinstance(counter, FlopCounterMode):
            counter.flop_registry[packet] = flop_registry[packet]
    PLAIN[packet.default] = plain
    return packet.default, _below_autograd(packet.default, compute)


def is_exported() -> bool:
    """Return whether torch records a program for others to run: `torch.export`, `torch.jit`, ONNX.

    Such a program gets torch's own operators, by the functions in `PLAIN`, so that it runs without tvmconv, too.
    """
    return torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None


def fixed_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor as integers, also while `torch.jit` traces, which makes tensors of sizes."""
    state = torch._C._get_tracing_state()
    if state is None:
        return tuple(tensor.shape)
    torch._C._set_tracing_state(None)
    try:
        return tuple(tensor.shape)
    finally:
        torch._C._set_tracing_state(state)


def _one_by_one(operator: Any) -> Callable[..., Any]:
    """Return the rule by which `torch.vmap` calls an operator: once for each element of the axis that it maps over.

    A tensor that the operator changes must have that axis: all elements would change one tensor.
    """
    changed = [i for i, each in enumerate(operator._schema.arguments) if each.alias_info and each.alias_info.is_write]

    def call(info: Any, axes: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        count = info.batch_size
        for i in changed:
            if axes[i] is None:
                name = operator._schema.arguments[i].name
                raise TensorError(name, "a tensor that vmap does not map over", "one of its elements for each result")
        parts = [
            [each] * max(1, count) if not isinstance(axis, int) else each.unbind(axis) if count else [each.sum(axis)]
            for each, axis in zip(arguments, axes, strict=True)
        ]
        results = [operator(*part) for part in zip(*parts, strict=True)]
        if isinstance(results[0], tuple):
            return tuple(torch.stack(each)[:count] for each in zip(*results, strict=True)), (0,) * len(results[0])
        return torch.stack(results)[:count], 0

    return call


DENSE = {torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr() for name in ("CPU", "CUDA")}
"""The key sets of torch's dispatcher, as integers, for plain tensors on a CPU or a GPU."""


def _below_autograd(operator: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that makes the results of arguments below autograd, after the dispatcher's keys.

    Where nothing traces, batches or wraps, so that the dispatcher would call `compute` next, it calls `compute` itself.
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
    """Return the function that the dispatcher calls for autograd: it keeps what gradients need if some are required.

    The dispatcher calls it for one level of `torch.func`'s transforms, so it is a function of autograd of that level.
    """
    is_grad_enabled, any_requires_grad = torch._C.is_grad_enabled, torch._C._any_requires_grad
    are_transforms_active = torch._C._are_functorch_transforms_active

    class Differentiable(_SingleLevelFunction):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *arguments_and_keys: Any) -> Any:
            *arguments, keys = arguments_and_keys
            keep(ctx, arguments)
            if not are_transforms_active():
                return below(keys, *arguments)
            with torch.enable_grad():  # for the levels below, which autograd has just turned off for this one
                return below(keys, *arguments)

        @staticmethod
        def backward(ctx: Any, *outer: Tensor | None) -> Gradients:
            return *gradients(ctx, *outer), None

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            expected = "reverse mode, such as torch.func.grad or vjp: there are no forward-mode derivatives"
            raise TensorError("arguments", "tensors with tangents", expected)

    apply = Differentiable.apply

    def call(keys: Any, *arguments: Any) -> Any:
        # Forward-mode derivatives are refused in `jvp`: they would else be left out.
        if (is_grad_enabled() and any_requires_grad(*arguments)) or forward_ad._current_level >= 0:
            if not are_transforms_active():
                return apply(*arguments, keys)
            with enable_single_level_autograd_function():
                return apply(*arguments, keys)
        return below(keys, *arguments)

    return call
