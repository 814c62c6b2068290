"""Squeeze and excitation: modules of torch with the shapes of their inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Excitation(nn.Module):  # type: ignore[misc, name-defined]
    """A module that scales channels by a gate; `twice` reads what is squeezed once more."""

    def __init__(self, channels: int, squeezed: int, activation: Any, gate: Any, bias: bool, twice: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, squeezed, 1, bias=bias), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.gate, self.twice = activation, gate, twice

    def forward(self, x: Any) -> Any:
        squeezed = self.activation(self.first(x.mean((2, 3), keepdim=True)))
        y = x * self.gate(self.second(squeezed))
        return y + squeezed.sum() if self.twice else y


class Case(NamedTuple):
    """An excitation of images."""

    batch: int
    channels: int
    squeezed: int
    activation: Any = nn.SiLU()
    gate: Any = nn.Sigmoid()
    bias: bool = True
    twice: bool = False

    @property
    def module(self) -> Any:
        torch.manual_seed(1)
        return Excitation(*self[1:]).eval()

    @property
    def x(self) -> Any:
        return torch.randn(self.batch, self.channels, 3, 5, generator=torch.Generator().manual_seed(2))


CASES = {
    "efficientnet": Case(2, 240, 10),
    "mobilenet": Case(1, 96, 24, nn.ReLU(), nn.Hardsigmoid()),
    "odd": Case(3, 75, 33, nn.Hardswish(), nn.Tanh(), bias=False),
    "large": Case(1, 1152, 48),
    "many": Case(5, 600, 70),
}
