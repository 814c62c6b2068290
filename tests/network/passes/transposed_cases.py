"""Transposed convolutions for tests, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution of x with what torch takes beside x and the weight."""

    id: str
    x: tuple[int, ...]
    """The shape of x."""
    outputs: int
    kernel: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    form: str = ""
    """The convolution that computes it, in words."""

    def module(self) -> nn.Module:
        """Return the layer, with a bias and random weights."""
        kind = nn.ConvTranspose1d if len(self.kernel) == 1 else nn.ConvTranspose2d
        torch.manual_seed(5)
        return kind(self.x[1], self.outputs, self.kernel, **self.attributes).eval()

    def input(self) -> torch.Tensor:
        return torch.randn(self.x, generator=torch.Generator().manual_seed(6))


def case(name: str, x: Sequence[int], outputs: int, kernel: Sequence[int], form: str, **attributes: Any) -> Transposed:
    return Transposed(name, tuple(x), outputs, tuple(kernel), attributes, form)


CASES = (
    case("unet", (2, 8, 5, 6), 16, (2, 2), "conv2d 2x8x5x6 -> 64, 1x1 + shift", stride=2),
    case("dcgan", (2, 8, 5, 6), 16, (4, 4), "conv2d 2x8x5x6 -> 64, 2x2 padding 1,1,1,1 + shift", stride=2, padding=1),
    case("odd", (1, 4, 5, 6), 3, (3, 3), "conv2d 1x4x5x6 -> 12, 2x2 padding 0,0,1,1 + shift", stride=2, padding=1,
         output_padding=1),
    case("flipped", (1, 4, 5, 6), 3, (3, 5), "conv2d 1x4x5x6 -> 3, 3x5 padding 1,3,1,3 + shift", padding=1),
    case("small", (1, 4, 5, 6), 3, (1, 2), "conv2d 1x4x5x6 -> 27, 1x1 + shift", stride=3, output_padding=1),
    case("groups", (1, 8, 5, 6), 6, (3, 3), "conv2d 1x8x5x6 -> 24, 2x2 groups 2 padding 1,1,1,1 + shift", stride=2,
         groups=2),
    case("depthwise", (1, 8, 5, 6), 8, (4, 4), "depthwise 1x8x5x6 -> 32, 2x2 padding 1,1,1,1 + shift", stride=2,
         padding=1, groups=8),
    case("dilated", (1, 4, 5, 6), 3, (3, 2), "conv2d 1x4x5x6 -> 12, 3x2 dilation 1x3 padding 2,3,2,3 + shift",
         stride=(2, 2), dilation=(2, 6)),
    case("wide", (1, 4, 7, 3), 21, (9, 2), "conv2d 1x4x7x3 -> 84, 3x2 padding 1,1,2,1 + shift", stride=(4, 1),
         padding=(2, 0)),
    case("row", (2, 8, 9), 16, (4,), "conv2d 2x8x1x9 -> 32, 1x2 padding 0,1,0,1 + shift", stride=2, padding=1),
)  # fmt: skip


class Level(nn.Module):
    """A level of U-Net: planes, and planes half as large that a transposed convolution brings to their size again."""

    def __init__(self, channels: int, kernel: int, padding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.below = nn.Sequential(
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, channels, kernel, 2, padding),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.last = nn.Conv2d(2 * channels, channels, 3, padding=1)
        norm = self.below[4]
        for vector in (norm.weight, norm.bias, norm.running_mean):
            nn.init.normal_(vector)
        nn.init.uniform_(norm.running_var, 0.5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        return self.last(torch.cat([y, self.below(y)], 1))


def level(channels: int = 32, kernel: int = 2, padding: int = 0) -> nn.Module:
    """Return a level with weights that are the same in each call."""
    torch.manual_seed(5)
    return Level(channels, kernel, padding).eval()
