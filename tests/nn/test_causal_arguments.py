"""Arguments of causal convolutions: packed sequences, initial and final states, rings, rows of a cache; by float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.nn.nn_cases import assert_close
from tvmconv.problem.errors import TvmconvError

torch = pytest.importorskip("torch")

from tvmconv.nn import causal_conv1d_fn, causal_conv1d_update  # noqa: E402

Tensor = Any
CHANNELS, TAPS = 5, 4


@dataclass(frozen=True)
class Packed:
    """The numbers of the sequences that are packed into each of x, and the options of a call."""

    id: str
    numbers: tuple[tuple[int, ...], ...]
    activation: str | None = "silu"
    states: bool = False
    dtype: torch.dtype = torch.float32
    bias: bool = True


PACKED = (
    Packed("one-sequence", ((0,) * 9,)),
    Packed("several", ((0, 0, 0, 1, 1, 2, 2, 2, 2), (0, 1, 2, 3, 4, 5, 6, 7, 8))),
    Packed("padding-behind", ((0, 0, 0, 0, 1, 1, -1, -1, -1),), activation=None),
    Packed("padding-between", ((0, 0, -1, -1, 1, 1, 1, 1, -1),), bias=False),
    Packed("states-of-the-first", ((3, 3, 4, 4, 4, 4, 4, 4, 4), (1,) * 9), states=True, activation="swish"),
    Packed("shorter-than-taps", ((0, 1), (0, 0)), states=True),
    Packed("half", ((0, 0, 0, 0, 0, 1, 1, 1, 1),), dtype=torch.bfloat16),
)


def tensors(batch: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Return x (B, D, L), the weight (D, K), the bias (D,) and initial states (B, D, K - 1)."""
    torch.manual_seed(2)
    shapes = (batch, CHANNELS, length), (CHANNELS, TAPS), (CHANNELS,), (batch, CHANNELS, TAPS - 1)
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def summed(x: Tensor, w: Tensor, bias: Tensor | None, states: Tensor | None, numbers: Any, silu: bool) -> Tensor:
    """Return the convolution in float64, element by element; `numbers` (B, L) has the sequence of each."""
    batch, channels, length = x.shape
    rows = []
    for b in range(batch):
        for t in range(length):
            total = torch.zeros(channels, dtype=torch.float64) if bias is None else bias.double().clone()
            for k in range(TAPS):
                at = t - (TAPS - 1) + k
                if at >= 0 and numbers[b][at] == numbers[b][t]:
                    total = total + w[:, k].double() * x[b, :, at].double()
                elif at < 0 and states is not None and numbers[b][t] == numbers[b][0]:
                    total = total + w[:, k].double() * states[b, :, at].double()
            total = total * torch.sigmoid(total) if silu else total
            rows.append(total if numbers[b][t] >= 0 else torch.zeros_like(total))
    return torch.stack(rows).reshape(batch, length, channels).transpose(1, 2)


@pytest.mark.parametrize("case", PACKED, ids=lambda case: case.id)
def test_packed_sequences(case: Packed) -> None:
    numbers = torch.tensor(case.numbers, dtype=torch.int32)
    x, w, bias, states = tensors(*numbers.shape, case.dtype)
    given = bias if case.bias else None, states if case.states else None
    wanted = [each for each in (x, w, *given) if each is not None]
    exact = [each.double().requires_grad_() for each in wanted]
    for each in wanted:
        each.requires_grad_()
    result = causal_conv1d_fn(x, w, given[0], numbers, given[1], activation=case.activation)
    others = exact[2:]
    doubles = [None if each is None else others.pop(0) for each in given]
    expected = summed(exact[0], exact[1], *doubles, case.numbers, case.activation is not None)
    assert result.dtype == case.dtype
    assert_close(result, expected)
    dy = torch.randn_like(result)
    got = torch.autograd.grad(result, wanted, dy)
    for one, other in zip(got, torch.autograd.grad(expected, exact, dy.double()), strict=True):
        assert_close(one, other)


def test_a_leak_between_packed_sequences_is_caught() -> None:
    x, w, bias, _ = tensors(1, 9)
    expected = summed(x, w, bias, None, ((0,) * 4 + (1,) * 5,), True)
    with pytest.raises(AssertionError):
        assert_close(causal_conv1d_fn(x, w, bias, activation="silu"), expected)


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize("given", [False, True])
def test_final_states(length: int, given: bool) -> None:
    """Those of a short x are what is left of the initial states, with x behind."""
    x, w, bias, states = tensors(2, length)
    before = states if given else torch.zeros_like(states)
    out = torch.full_like(states, torch.nan)
    initial = states if given else None
    result, last = causal_conv1d_fn(x, w, bias, None, initial, True, out, "silu")
    assert last is out
    assert torch.equal(out, torch.cat((before, x), -1)[..., -3:])
    assert_close(result, summed(x, w, bias, initial, ((0,) * length,) * 2, True))
    assert torch.equal(causal_conv1d_fn(x, w, bias, None, initial, True, None, "silu")[1], out)


@pytest.mark.parametrize("kept", [3, 5, 16])
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_ring(kept: int, size: int, dtype: torch.dtype) -> None:
    """Steps with rings behind other numbers of elements, which lie where these numbers say, are the whole sequence."""
    x, w, bias, _ = tensors(2, 14)
    ring, past = torch.zeros(2, CHANNELS, kept), torch.tensor([0, 11], dtype=dtype)
    steps = [
        causal_conv1d_update(each, ring, w, bias, "silu", cache_seqlens=past + i * size)
        for i, each in enumerate(x.split(size, -1))
    ]
    assert_close(torch.cat(steps, -1), summed(x, w, bias, None, ((0,) * 14,) * 2, True))
    for row, before in enumerate(past.tolist()):
        for at in range(max(0, 14 - kept), 14):
            assert torch.equal(ring[row, :, (before + at) % kept], x[row, :, at])


def test_rows_of_a_cache() -> None:
    """Each sequence has the states of its row; padding changes none, and its results are zeros."""
    x, w, bias, _ = tensors(4, 1)
    cache = torch.randn(6, CHANNELS, 3)
    before, rows = cache.clone(), torch.tensor([4, -1, 0, 2], dtype=torch.int32)
    result = causal_conv1d_update(x[..., 0], cache, w, bias, conv_state_indices=rows)
    for i, row in enumerate(rows.tolist()):
        if row < 0:
            assert not result[i].any()
            continue
        assert_close(result[i, :, None], summed(x[i : i + 1], w, bias, before[row : row + 1], ((0,),), False)[0])
        assert torch.equal(cache[row], torch.cat((before[row, :, 1:], x[i]), -1))
    for untouched in (1, 3, 5):
        assert torch.equal(cache[untouched], before[untouched])
    cache.copy_(before)
    nothing = causal_conv1d_update(x[..., 0], cache, w, bias, conv_state_indices=torch.full((4,), -1))
    assert not nothing.any()
    assert torch.equal(cache, before)


def test_rows_of_rings() -> None:
    x, w, _, _ = tensors(3, 2)
    rows, past = torch.tensor([5, 0, 3]), torch.tensor([9, 2, 0])
    rings = torch.randn(6, CHANNELS, 4)
    held = torch.stack(
        [torch.stack([rings[r, :, (p + k) % 4] for k in (-3, -2, -1)], -1) for r, p in zip(rows, past, strict=True)]
    )
    result = causal_conv1d_update(x, rings, w, None, None, past, rows)
    assert_close(result, summed(x, w, None, held, ((0, 0),) * 3, False))
    for i, (row, before) in enumerate(zip(rows, past, strict=True)):
        for at in (0, 1):
            assert torch.equal(rings[row, :, (before + at) % 4], x[i, :, at])


def test_states_in_half_precision_with_a_weight_in_float32() -> None:
    x, w, bias, _ = tensors(2, 3)
    narrow, state = x.bfloat16(), torch.zeros(2, CHANNELS, 3, dtype=torch.bfloat16)
    result = causal_conv1d_update(narrow, state, w, bias, "silu")
    assert result.dtype == torch.bfloat16
    assert_close(result, summed(narrow, w, bias, None, ((0,) * 3,) * 2, True))
    assert torch.equal(state, narrow)


BAD: dict[str, tuple[Any, str]] = {
    "numbers-of-another-shape": (
        lambda x, w, s: causal_conv1d_fn(x, w, seq_idx=torch.zeros(2, 8, dtype=torch.int32)),
        "seq_idx is 'torch.int32 of the shape .2, 8.'; expected torch.int32 of the shape .2, 9.",
    ),
    "numbers-in-float": (lambda x, w, s: causal_conv1d_fn(x, w, seq_idx=torch.zeros(2, 9)), "seq_idx is 'torch.float"),
    "numbers-and-final-states": (
        lambda x, w, s: causal_conv1d_fn(x, w, seq_idx=torch.zeros(2, 9, dtype=torch.int32), return_final_states=True),
        "return_final_states is True; expected False where seq_idx is given",
    ),
    "final-states-of-another-shape": (
        lambda x, w, s: causal_conv1d_fn(x, w, return_final_states=True, final_states_out=s[..., 1:]),
        "final_states_out is 'torch.float32 of the shape .2, 5, 2.'; expected torch.float32 of the shape .2, 5, 3.",
    ),
    "lengths": (lambda x, w, s: causal_conv1d_update(x, s, w, cache_seqlens=torch.zeros(3)), "cache_seqlens is '"),
    "rows": (lambda x, w, s: causal_conv1d_update(x, s, w, conv_state_indices=torch.zeros(2)), "conv_state_indices is"),
    "states-of-another-type": (lambda x, w, s: causal_conv1d_update(x, s.half(), w), "conv_state is torch.float16"),
    "no-states": (lambda x, w, s: causal_conv1d_update(x, None, w), "conv_state is 'a NoneType'; expected a tensor"),
    "gradients-of-a-step": (
        lambda x, w, s: causal_conv1d_update(x, s, w.clone().requires_grad_()),
        "weight is 'a tensor that requires grad'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name: str) -> None:
    call, message = BAD[name]
    x, w, _, states = tensors(2, 9)
    with pytest.raises(TvmconvError, match=message):
        call(x, w, states)


@pytest.mark.parametrize(("batch", "length"), [(0, 9), (2, 0), (0, 0)])
def test_nothing(batch: int, length: int) -> None:
    x, w, bias, states = tensors(batch, length)
    result, last = causal_conv1d_fn(x, w, bias, None, states, True, None, "silu")
    assert result.shape == x.shape
    assert torch.equal(last, states)
    numbers = torch.zeros(batch, length, dtype=torch.int32)
    assert causal_conv1d_fn(x, w, bias, numbers).shape == x.shape
    held = states.clone()
    assert causal_conv1d_update(x, held, w, bias, "silu").shape == x.shape
    assert torch.equal(held, states)
    if not batch:
        assert (
            causal_conv1d_update(x, torch.zeros(3, 5, 3), w, conv_state_indices=torch.zeros(0).int()).shape == x.shape
        )
