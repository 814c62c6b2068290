"""Ten networks from the papers that describe them, in torch, with the layers of torchvision's models.

Importing this module loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


class ChannelShuffle(nn.Module):  # type: ignore[misc]
    """A unit that sends half of the channels through a branch and then interleaves both halves."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = x.chunk(2, dim=1)
        return interleave(kept, self.branch(worked))


class ShuffleDown(nn.Module):  # type: ignore[misc]
    """A unit with two branches of all channels, whose results are interleaved by channels."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return interleave(self.left(x), self.right(x))


def interleave(left: Tensor, right: Tensor) -> Tensor:
    n, c, h, w = left.shape
    return torch.stack([left, right], 2).reshape(n, 2 * c, h, w)


def conv_bn(
    channels: int,
    out: int,
    size: int = 1,
    stride: int = 1,
    groups: int = 1,
    act: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), *([act()] if act else []))


def classifier(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]


def alexnet() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, out, size, stride, padding, pooled in (
        (3, 64, 11, 4, 2, True), (64, 192, 5, 1, 2, True), (192, 384, 3, 1, 1, False),
        (384, 256, 3, 1, 1, False), (256, 256, 3, 1, 1, True),
    ):  # fmt: skip
        layers += [
            nn.Conv2d(channels, out, size, stride, padding),
            nn.ReLU(),
            *([nn.MaxPool2d(3, 2)] if pooled else []),
        ]
    layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def vgg16() -> nn.Module:
    return vgg((2, 2, 3, 3, 3))


def vgg19() -> nn.Module:
    return vgg((2, 2, 4, 4, 4))


def vgg(counts: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for out, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000))


def resnet(counts: Sequence[int], bottleneck: bool) -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate(counts):
        width, out = 64 << stage, (256 if bottleneck else 64) << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                parts = [conv_bn(channels, width), conv_bn(width, width, 3, stride), conv_bn(width, out, act=None)]
            else:
                parts = [conv_bn(channels, width, 3, stride), conv_bn(width, out, 3, act=None)]
            shortcut = conv_bn(channels, out, 1, stride, act=None) if channels != out else None
            layers.append(Residual(nn.Sequential(*parts), shortcut, nn.ReLU()))
            channels = out
    return nn.Sequential(*layers, *classifier(channels))


def resnet18() -> nn.Module:
    return resnet((2, 2, 2, 2), bottleneck=False)


def resnet50() -> nn.Module:
    return resnet((3, 4, 6, 3), bottleneck=True)


def squeezenet() -> nn.Module:
    def fire(channels: int, squeezed: int, expanded: int) -> nn.Module:
        small = nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU())
        large = nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU())
        return nn.Sequential(nn.Conv2d(channels, squeezed, 1), nn.ReLU(), Concat(small, large))

    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    fires = [fire(64, 16, 64), fire(128, 16, 64), pool, fire(128, 32, 128), fire(256, 32, 128), pool]
    fires += [fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256)]
    head = [nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool, *fires, *head)


def densenet121() -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            new = [nn.BatchNorm2d(channels), nn.ReLU(), conv_bn(channels, 128), nn.Conv2d(128, 32, 3, 1, 1, bias=False)]
            layers.append(Concat(nn.Identity(), nn.Sequential(*new)))
            channels += 32
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if stage < 3:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, *classifier(channels))


def inverted(
    channels: int,
    hidden: int,
    out: int,
    size: int,
    stride: int,
    act: Callable[[], nn.Module],
    squeeze: nn.Module | None = None,
) -> nn.Module:
    """Return an inverted residual: expansion, depthwise filter, squeeze and excitation, and projection.

    The input is added where its shape fits.
    """
    parts = [conv_bn(channels, hidden, act=act)] if hidden != channels else []
    parts += [conv_bn(hidden, hidden, size, stride, hidden, act), *([squeeze] if squeeze else [])]
    body = nn.Sequential(*parts, conv_bn(hidden, out, act=None))
    return Residual(body) if stride == 1 and channels == out else body


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 32, 3, 2, act=nn.ReLU6)]
    channels = 32
    for expansion, out, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    ):  # fmt: skip
        for block in range(count):
            layers.append(inverted(channels, channels * expansion, out, 3, 1 if block else stride, nn.ReLU6))
            channels = out
    return nn.Sequential(*layers, conv_bn(320, 1280, act=nn.ReLU6), *classifier(1280))


def mobilenet_v3() -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 16, 3, 2, act=nn.Hardswish)]
    channels = 16
    for size, hidden, out, squeezed, act, stride in (
        (3, 16, 16, 8, nn.ReLU, 2), (3, 72, 24, 0, nn.ReLU, 2), (3, 88, 24, 0, nn.ReLU, 1),
        (5, 96, 40, 24, nn.Hardswish, 2), (5, 240, 40, 64, nn.Hardswish, 1), (5, 240, 40, 64, nn.Hardswish, 1),
        (5, 120, 48, 32, nn.Hardswish, 1), (5, 144, 48, 40, nn.Hardswish, 1), (5, 288, 96, 72, nn.Hardswish, 2),
        (5, 576, 96, 144, nn.Hardswish, 1), (5, 576, 96, 144, nn.Hardswish, 1),
    ):  # fmt: skip
        squeeze = SqueezeExcite(hidden, squeezed, nn.ReLU(), nn.Hardsigmoid()) if squeezed else None
        layers.append(inverted(channels, hidden, out, size, stride, act, squeeze))
        channels = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000)]
    return nn.Sequential(*layers, conv_bn(96, 576, act=nn.Hardswish), *head)


def shufflenet_v2() -> nn.Module:
    def branch(channels: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(conv_bn(channels, out), conv_bn(out, out, 3, stride, out, None), conv_bn(out, out))

    layers: list[nn.Module] = [conv_bn(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 24
    for out, count in ((116, 4), (232, 8), (464, 4)):
        left = nn.Sequential(conv_bn(channels, channels, 3, 2, channels, None), conv_bn(channels, out // 2))
        layers.append(ShuffleDown(left, branch(channels, out // 2, 2)))
        layers += [ChannelShuffle(branch(out // 2, out // 2, 1)) for _ in range(count - 1)]
        channels = out
    return nn.Sequential(*layers, conv_bn(464, 1024), *classifier(1024))


def efficientnet_b0() -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 32, 3, 2, act=nn.SiLU)]
    channels = 32
    for expansion, size, stride, out, count in (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ):  # fmt: skip
        for block in range(count):
            hidden = channels * expansion
            squeeze = SqueezeExcite(hidden, channels // 4, nn.SiLU(), nn.Sigmoid())
            layers.append(inverted(channels, hidden, out, size, 1 if block else stride, nn.SiLU, squeeze))
            channels = out
    return nn.Sequential(*layers, conv_bn(320, 1280, act=nn.SiLU), *classifier(1280))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    network.__name__: network
    for network in (
        resnet18,
        resnet50,
        mobilenet_v2,
        mobilenet_v3,
        vgg16,
        vgg19,
        shufflenet_v2,
        squeezenet,
        alexnet,
        densenet121,
        efficientnet_b0,
    )
}
"""The functions that build each network, by its name."""
