"""Causal convolutions of sequences as functions on tensors, with the arguments of the package `causal_conv1d`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from tvmconv.problem.errors import TensorError
from tvmconv.runtime.torch import plain
from tvmconv.runtime.torch.library import is_exported

from . import causal
from .arguments import is_autocast_enabled, narrowed, require_tensors
from .operators import DTYPES, require_on

NAMES = (None, "silu", "swish")
"""The activations, of which the last two are one."""


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each channel of x (B, D, L) with weight (D, K), plus bias (D,), with no look ahead: (B, D, L).

    The elements before x are the `initial_states` (B, D, K - 1), else zeros. `activation` is None or "silu", also
    called "swish", in the same kernel. With `return_final_states` the last K - 1 elements (B, D, K - 1) follow the
    result, in `final_states_out` if that is given; they are the initial states of what comes next.

    `seq_idx` (B, L), of torch.int32, numbers the sequences that are packed into each of x: an element reads elements of
    its sequence alone, and one with a negative number gets 0. States then belong to the sequence of the first element,
    and are not returned. Packed sequences are computed by the operators of torch. The others share two kernels for all
    lengths from 16 on, and on a GPU the first length has another one. Each length below 16 has a kernel, and so has the
    gradient by the weight at each length.

    x may lie as (B, L, D) in memory, as `x.transpose(1, 2)` makes it; the result then does. The weight may be of
    float32 where x is in half precision; the result is of the type of x, or of autocast. Gradients are those by x,
    weight, bias and initial states. Raises `TensorError` for an argument that is wrong. Names, order and meaning are
    those of the package `causal_conv1d`, which takes 2 to 4 taps on a GPU; here any number is taken, on CPUs too.

    >>> import torch
    >>> from tvmconv import nn
    >>> x, weight, bias = torch.randn(2, 64, 100), torch.randn(64, 4), torch.zeros(64)
    >>> nn.causal_conv1d_fn(x, weight, bias, activation="silu").shape
    torch.Size([2, 64, 100])
    """
    tensors = x, weight, bias, seq_idx, initial_states, final_states_out
    if has_torch_function(tensors):
        arguments = x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation
        return handle_torch_function(causal_conv1d_fn, tensors, *arguments)
    silu = _is_silu(activation)
    require_tensors(x, weight, bias, seq_idx=seq_idx, initial_states=initial_states, final_states_out=final_states_out)
    x, taps, bias, states, dtype = _in_one_type(x, weight, bias, initial_states)
    if seq_idx is not None:
        if return_final_states:
            raise TensorError("return_final_states", return_final_states, "False where seq_idx is given")
        _require_numbers(seq_idx, x)
        causal.require_sequences(x, taps, bias, states)
        return plain.packed_causal_conv1d(x, taps, bias, states, seq_idx, silu).to(dtype)
    function = plain.causal_conv1d if is_exported() else causal.causal_conv1d
    result = function(x, taps, bias, states, silu)
    if result.dtype is not dtype:
        result = result.to(dtype)
    if not return_final_states:
        return result
    states_length = taps.shape[1] - 1
    behind = torch.cat((x.new_zeros((*x.shape[:2], states_length)) if states is None else states, x), -1)
    final_states = behind[..., behind.shape[2] - states_length :].to(dtype)
    if final_states_out is None:
        return result, final_states
    if final_states_out.shape != final_states.shape or final_states_out.dtype != dtype:
        value = f"{final_states_out.dtype} of the shape {tuple(final_states_out.shape)}"
        raise TensorError("final_states_out", value, f"{dtype} of the shape {tuple(final_states.shape)}")
    return result, final_states_out.copy_(final_states)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """Go on with `causal_conv1d_fn` by x (B, D), or by several elements (B, D, L), and return the result in that shape.

    `conv_state` (B, D, S), S at least K - 1 and 1, has the last elements before x, and is updated to those of x
    itself. With `cache_seqlens` (B,), of torch.int32, it is a ring: the element after `n` others is at index `n % S`,
    and these are the numbers of elements before x. With `conv_state_indices` (B,), of torch.int32, it has the states of
    many sequences, (N, D, S), and these are the rows of those in x, each at most once; where one is negative, as -1 for
    padding, the result is 0 and no state changes. There are no gradients. The rest is as for `causal_conv1d_fn`. Raises
    `TensorError` for an argument that is wrong.

    >>> import torch
    >>> from tvmconv.nn import causal_conv1d_fn, causal_conv1d_update
    >>> x, weight = torch.randn(2, 16, 20), torch.randn(16, 4)
    >>> y, state = causal_conv1d_fn(x[..., :19], weight, return_final_states=True)
    >>> last = causal_conv1d_update(x[..., 19], state, weight)
    >>> torch.allclose(last, causal_conv1d_fn(x, weight)[..., 19], atol=1e-5)
    True
    """
    tensors = x, conv_state, weight, bias, cache_seqlens, conv_state_indices
    if has_torch_function(tensors):
        arguments = x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices
        return handle_torch_function(causal_conv1d_update, tensors, *arguments)
    silu = _is_silu(activation)
    if not isinstance(conv_state, Tensor):
        raise TensorError("conv_state", f"a {type(conv_state).__name__}", "a tensor of torch")
    require_tensors(x, weight, bias, cache_seqlens=cache_seqlens, conv_state_indices=conv_state_indices)
    if x.dim() not in (2, 3):
        raise TensorError("x", tuple(x.shape), "the shape (B, D) or (B, D, L)")
    given, taps, bias, _, dtype = _in_one_type(x.unsqueeze(-1) if x.dim() == 2 else x, weight, bias, None)
    function = plain.causal_conv1d_update if is_exported() else causal.causal_conv1d_update
    if given.dtype == conv_state.dtype:
        result = function(given, conv_state, taps, bias, silu, cache_seqlens, conv_state_indices)
    else:
        if dtype != conv_state.dtype and x.dtype != conv_state.dtype:
            raise TensorError("conv_state", conv_state.dtype, f"{x.dtype}, as x is")
        states = conv_state.to(given.dtype)
        result = function(given, states, taps, bias, silu, cache_seqlens, conv_state_indices)
        conv_state.copy_(states)
    result = result.to(dtype)
    return result.squeeze(-1) if x.dim() == 2 else result


def _is_silu(activation: str | None) -> bool:
    if activation not in NAMES:
        raise TensorError("activation", activation, "None, 'silu' or 'swish'")
    return activation is not None


def _in_one_type(
    x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, torch.dtype]:
    """Return tensors in one type, that of autocast or the wider one of x and weight, and the type of the result."""
    if x.dtype is weight.dtype and not is_autocast_enabled():
        return x, weight, bias, states, x.dtype
    given, taps, *others = narrowed(x, weight, *(() if states is None else (states,)))
    dtype, held = given.dtype, others[0] if others else None
    if dtype == taps.dtype or dtype not in DTYPES or taps.dtype not in DTYPES:
        return given, taps, bias, held, dtype
    wide = torch.promote_types(dtype, taps.dtype)
    held = held.to(wide) if held is not None and held.dtype == dtype else held
    bias = bias.to(wide) if bias is not None and bias.dtype in DTYPES else bias
    return given.to(wide), taps.to(wide), bias, held, dtype


def _require_numbers(seq_idx: Tensor, x: Tensor) -> None:
    """Refuse numbers of sequences that are not one integer for each element of x."""
    require_on(x.device, "seq_idx", seq_idx)
    expected = (x.shape[0], x.shape[-1])
    if tuple(seq_idx.shape) != expected or seq_idx.dtype not in (torch.int32, torch.int64):
        value = f"{seq_idx.dtype} of the shape {tuple(seq_idx.shape)}"
        raise TensorError("seq_idx", value, f"torch.int32 of the shape {expected}")
