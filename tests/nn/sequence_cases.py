"""Causal convolutions of sequences that tests try with gradients, on any device, and the comparison with float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.nn.nn_cases import assert_close

torch = pytest.importorskip("torch")

from tvmconv.nn import functional  # noqa: E402

Tensor = Any


@dataclass(frozen=True)
class Sequences:
    """The shapes and options of a convolution of x (B, D, L) with a weight (D, K)."""

    x: tuple[int, int, int]
    taps: int
    bias: bool = True
    activation: str | None = "silu"
    states: bool = False
    channels_last: bool = False

    def tensors(self, dtype: Any = torch.float32, device: str = "cpu") -> list[Tensor]:
        """Return x, the weight, the bias and the states, if there are any, which require gradients."""
        torch.manual_seed(0)
        batch, channels, length = self.x
        x = torch.randn(batch, length, channels).transpose(1, 2) if self.channels_last else torch.randn(self.x)
        shapes = [(channels, self.taps)]
        shapes += [(channels,)] * self.bias + [(batch, channels, self.taps - 1)] * self.states
        tensors = [x, *map(torch.randn, shapes)]
        return [tensor.to(device, dtype).requires_grad_() for tensor in tensors]

    def _given(self, x: Tensor, w: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return x, w, others[0] if self.bias else None, others[-1] if self.states else None

    def convolve(self, *tensors: Tensor) -> Tensor:
        """Return the result of tvmconv."""
        x, w, bias, states = self._given(*tensors)
        return functional.causal_conv1d(x, w, bias, self.activation, states)

    def reference(self, *tensors: Tensor) -> Tensor:
        """Return torch's result."""
        x, w, bias, states = self._given(*tensors)
        behind = torch.nn.functional.pad(x, (self.taps - 1, 0)) if states is None else torch.cat((states, x), -1)
        result = torch.nn.functional.conv1d(behind, w[:, None], bias, groups=w.shape[0])
        return torch.nn.functional.silu(result) if self.activation else result


CASES: Mapping[str, Sequences] = {
    "4-taps": Sequences((2, 6, 50), 4),
    "linear": Sequences((2, 6, 33), 3, activation=None),
    "states": Sequences((2, 5, 40), 4, activation="swish", states=True),
    "linear-states": Sequences((3, 4, 19), 2, bias=False, activation=None, states=True),
    "shorter-than-states": Sequences((2, 3, 2), 5, states=True),
    "one-element": Sequences((2, 8, 1), 4, states=True),
    "one-tap": Sequences((2, 3, 20), 1, states=True),
    "one-channel": Sequences((3, 1, 21), 4),
    "128-taps": Sequences((1, 3, 200), 128, bias=False),
    "channels-last": Sequences((2, 6, 50), 4, channels_last=True),
    "channels-last-states": Sequences((2, 8, 31), 7, states=True, channels_last=True),
}


def check(case: Sequences, dtype: Any = torch.float32, device: str = "cpu") -> None:
    """Compare the result and all gradients with those of float64, and the order in memory with that of x."""
    tensors = case.tensors(dtype, device)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    result, expected = case.convolve(*tensors), case.reference(*exact)
    assert result.dtype == dtype
    assert result.stride() == tensors[0].stride()
    assert_close(result, expected)
    dy = torch.randn_like(result)
    got, wanted = torch.autograd.grad(result, tensors, dy), torch.autograd.grad(expected, exact, dy.double())
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        if other.numel():
            assert_close(one, other)
