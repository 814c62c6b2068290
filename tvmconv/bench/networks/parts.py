"""The parts that networks have in common, in torch. Importing this module loads torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Residual(nn.Module):  # type: ignore[misc]
    """A residual block: activation(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut or nn.Identity(), activation or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class Concat(nn.Module):  # type: ignore[misc]
    """A module that joins the results of several modules along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class SqueezeExcite(nn.Module):  # type: ignore[misc]
    """A module that scales each channel by a gate, which is computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int, activation: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation,
            nn.Conv2d(squeezed, channels, 1),
            gate,
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Shuffled(nn.Module):  # type: ignore[misc]
    """A unit whose results of two branches are interleaved by channels, each of all channels or of one half of them."""

    def __init__(self, left: nn.Module, right: nn.Module, halved: bool) -> None:
        super().__init__()
        self.left, self.right, self.halved = left, right, halved

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1) if self.halved else (x, x)
        left, right = self.left(first), self.right(second)
        n, c, h, w = left.shape
        return torch.stack([left, right], 2).reshape(n, 2 * c, h, w)


class ChannelsLast(nn.Module):  # type: ignore[misc]
    """A module on (N, H, W, C), whose input and result are (N, C, H, W)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scaled(nn.Module):  # type: ignore[misc]
    """A module that multiplies each channel by a learned number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Tokens(nn.Module):  # type: ignore[misc]
    """A module that makes (N, 1 + H * W, C) of (N, C, H, W): a learned token first, and learned positions added."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, channels))
        self.positions = nn.Parameter(torch.zeros(1, 1 + count, channels))

    def forward(self, x: Tensor) -> Tensor:
        patches = x.flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(x.shape[0], -1, -1), patches], 1) + self.positions


class Attention(nn.Module):  # type: ignore[misc]
    """Self-attention of (N, L, C) with several heads."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projected, self.joined = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, length, channels = x.shape
        factors = self.projected(x).reshape(n, length, 3, self.heads, channels // self.heads)
        q, k, v = factors.permute(2, 0, 3, 1, 4).unbind()
        scores = q @ k.transpose(-2, -1) * (channels // self.heads) ** -0.5
        return self.joined((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, channels))


class First(nn.Module):  # type: ignore[misc]
    """A module that takes the first token of (N, L, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def conv_bn(
    channels: int,
    out: int,
    size: int | tuple[int, int] = 1,
    stride: int = 1,
    groups: int = 1,
    act: Callable[[], nn.Module] | None = nn.ReLU,
    padded: bool = True,
) -> nn.Sequential:
    """Return a convolution, batch norm and activation; without padding the convolution shrinks its input."""
    r, s = (size, size) if isinstance(size, int) else size
    padding = (r // 2, s // 2) if padded else 0
    conv = nn.Conv2d(channels, out, (r, s), stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), *([act()] if act else []))


def classifier(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
