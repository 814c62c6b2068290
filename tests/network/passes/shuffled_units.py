"""A small network of units as ShuffleNetV2 has them: half of the channels pass by, and all are shuffled."""

from __future__ import annotations

import torch
from torch import nn


def layer(inputs: int, outputs: int, size: int = 1, groups: int = 1, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and a batch norm with numbers of its own."""
    norm = nn.BatchNorm2d(outputs)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor, 0.5)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), norm]


class Unit(nn.Module):
    """Half of the channels pass by three layers, in front of what these make of the others or behind it."""

    def __init__(self, channels: int, is_behind: bool = False, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        half = channels // 2
        self.is_behind = is_behind
        self.layers = nn.Sequential(
            *layer(half, half), activation(), *layer(half, half, 3, half), *layer(half, half), activation()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        aside, other = x.chunk(2, 1)
        parts = [aside, self.layers(other)]
        return nn.functional.channel_shuffle(torch.cat(parts[::-1] if self.is_behind else parts, 1), 2)


class First(nn.Module):
    """Two branches that each read all channels, at half of the height and width."""

    def __init__(self, inputs: int, half: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*layer(inputs, inputs, 3, inputs, 2), *layer(inputs, half), nn.ReLU())
        self.second = nn.Sequential(
            *layer(inputs, half), nn.ReLU(), *layer(half, half, 3, half, 2), *layer(half, half), nn.ReLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.channel_shuffle(torch.cat([self.first(x), self.second(x)], 1), 2)


def network(*units: nn.Module, inputs: int, channels: int) -> nn.Module:
    """Return units between a layer of so many channels and a layer of 16 outputs."""
    torch.manual_seed(3)
    ends = [*layer(3, inputs, 3), nn.ReLU()], [nn.Conv2d(channels, 16, 1)]
    return nn.Sequential(*ends[0], *units, *ends[1]).eval()


def shufflenet(half: int = 13) -> nn.Module:
    """Return a network of two stages, whose channels are no multiples of eight."""
    torch.manual_seed(4)
    stages = [First(8, half), Unit(2 * half), Unit(2 * half), First(2 * half, 2 * half), Unit(4 * half)]
    return network(*stages, inputs=8, channels=4 * half)
