"""Networks from the papers that describe them, in torch, with the layers of torchvision's models.

Importing this module loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from .parts import (
    Attention,
    ChannelsLast,
    Concat,
    First,
    Residual,
    Scaled,
    Shuffled,
    SqueezeExcite,
    Tokens,
    classifier,
    conv_bn,
)


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
    rows = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 3, 2, 32, 3), (6, 3, 2, 64, 4), (6, 3, 1, 96, 3), (6, 3, 2, 160, 3),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    return expanding(rows, nn.ReLU6, squeezes=False)


def efficientnet_b0() -> nn.Module:
    rows = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    return expanding(rows, nn.SiLU, squeezes=True)


def expanding(
    rows: Sequence[tuple[int, int, int, int, int]], act: Callable[[], nn.Module], squeezes: bool
) -> nn.Module:
    """Return a network with blocks for each row: expansion, kernel, stride of the first one, channels and count."""
    layers: list[nn.Module] = [conv_bn(3, 32, 3, 2, act=act)]
    channels = 32
    for expansion, size, stride, out, count in rows:
        for block in range(count):
            hidden = channels * expansion
            squeeze = SqueezeExcite(hidden, channels // 4, nn.SiLU(), nn.Sigmoid()) if squeezes else None
            layers.append(inverted(channels, hidden, out, size, 1 if block else stride, act, squeeze))
            channels = out
    return nn.Sequential(*layers, conv_bn(320, 1280, act=act), *classifier(1280))


def mobilenet_v3() -> nn.Module:
    """Return the small one."""
    rows = (
        (3, 16, 16, 8, nn.ReLU, 2), (3, 72, 24, 0, nn.ReLU, 2), (3, 88, 24, 0, nn.ReLU, 1),
        (5, 96, 40, 24, nn.Hardswish, 2), (5, 240, 40, 64, nn.Hardswish, 1), (5, 240, 40, 64, nn.Hardswish, 1),
        (5, 120, 48, 32, nn.Hardswish, 1), (5, 144, 48, 40, nn.Hardswish, 1), (5, 288, 96, 72, nn.Hardswish, 2),
        (5, 576, 96, 144, nn.Hardswish, 1), (5, 576, 96, 144, nn.Hardswish, 1),
    )  # fmt: skip
    return mobilenet_v3_of(rows, 1024)


def mobilenet_v3_large() -> nn.Module:
    rows = (
        (3, 16, 16, 0, nn.ReLU, 1), (3, 64, 24, 0, nn.ReLU, 2), (3, 72, 24, 0, nn.ReLU, 1),
        (5, 72, 40, 24, nn.ReLU, 2), (5, 120, 40, 32, nn.ReLU, 1), (5, 120, 40, 32, nn.ReLU, 1),
        (3, 240, 80, 0, nn.Hardswish, 2), (3, 200, 80, 0, nn.Hardswish, 1), (3, 184, 80, 0, nn.Hardswish, 1),
        (3, 184, 80, 0, nn.Hardswish, 1), (3, 480, 112, 120, nn.Hardswish, 1), (3, 672, 112, 168, nn.Hardswish, 1),
        (5, 672, 160, 168, nn.Hardswish, 2), (5, 960, 160, 240, nn.Hardswish, 1), (5, 960, 160, 240, nn.Hardswish, 1),
    )  # fmt: skip
    return mobilenet_v3_of(rows, 1280)


def mobilenet_v3_of(rows: Sequence[tuple[int, int, int, int, Callable[[], nn.Module], int]], last: int) -> nn.Module:
    """Return a network with a block for each row: kernel, expansion, channels, squeezed ones, activation, stride."""
    layers: list[nn.Module] = [conv_bn(3, 16, 3, 2, act=nn.Hardswish)]
    channels = hidden = 16
    for size, hidden, out, squeezed, act, stride in rows:
        squeeze = SqueezeExcite(hidden, squeezed, nn.ReLU(), nn.Hardsigmoid()) if squeezed else None
        layers.append(inverted(channels, hidden, out, size, stride, act, squeeze))
        channels = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(hidden, last), nn.Hardswish(), nn.Linear(last, 1000)]
    return nn.Sequential(*layers, conv_bn(channels, hidden, act=nn.Hardswish), *head)


def shufflenet_v2() -> nn.Module:
    def branch(channels: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(conv_bn(channels, out), conv_bn(out, out, 3, stride, out, None), conv_bn(out, out))

    layers: list[nn.Module] = [conv_bn(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 24
    for out, count in ((116, 4), (232, 8), (464, 4)):
        left = nn.Sequential(conv_bn(channels, channels, 3, 2, channels, None), conv_bn(channels, out // 2))
        layers.append(Shuffled(left, branch(channels, out // 2, 2), halved=False))
        layers += [Shuffled(nn.Identity(), branch(out // 2, out // 2, 1), halved=True) for _ in range(count - 1)]
        channels = out
    return nn.Sequential(*layers, conv_bn(464, 1024), *classifier(1024))


def convnext_tiny() -> nn.Module:
    def norm(channels: int) -> nn.Module:
        return ChannelsLast(nn.LayerNorm(channels, eps=1e-6))

    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), norm(96)]
    for stage, count in enumerate((3, 3, 9, 3)):
        width = 96 << stage
        for _ in range(count):
            filtered = nn.Conv2d(width, width, 7, padding=3, groups=width)
            mixed = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            pixels = ChannelsLast(nn.LayerNorm(width, eps=1e-6), *mixed)
            layers.append(Residual(nn.Sequential(filtered, pixels, Scaled(width))))
        if stage < 3:
            layers += [norm(width), nn.Conv2d(width, 2 * width, 2, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), norm(768), nn.Flatten(), nn.Linear(768, 1000))


def regnet_y_400mf() -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 32, 3, 2)]
    channels = 32
    for out, count in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for block in range(count):
            stride = 1 if block else 2
            squeeze = SqueezeExcite(out, round(channels / 4), nn.ReLU(), nn.Sigmoid())
            parts = conv_bn(channels, out), conv_bn(out, out, 3, stride, out // 8), squeeze, conv_bn(out, out, act=None)
            shortcut = None if block else conv_bn(channels, out, 1, stride, act=None)
            layers.append(Residual(nn.Sequential(*parts), shortcut, nn.ReLU()))
            channels = out
    return nn.Sequential(*layers, *classifier(440))


def inception_v3() -> nn.Module:
    """Return the network without its second classifier, which only training has."""

    def chain(*layers: nn.Module) -> nn.Module:
        return nn.Sequential(*layers)

    def pooled(channels: int, out: int) -> nn.Module:
        return chain(nn.AvgPool2d(3, 1, 1), conv_bn(channels, out))

    def small(channels: int, out: int) -> nn.Module:
        double = chain(conv_bn(channels, 64), conv_bn(64, 96, 3), conv_bn(96, 96, 3))
        single = chain(conv_bn(channels, 48), conv_bn(48, 64, 5))
        return Concat(conv_bn(channels, 64), single, double, pooled(channels, out))

    def long(inner: int) -> nn.Module:
        single = chain(conv_bn(768, inner), conv_bn(inner, inner, (1, 7)), conv_bn(inner, 192, (7, 1)))
        sizes = ((7, 1), inner), ((1, 7), inner), ((7, 1), inner), ((1, 7), 192)
        double = chain(conv_bn(768, inner), *(conv_bn(inner, out, size) for size, out in sizes))
        return Concat(conv_bn(768, 192), single, double, pooled(768, 192))

    def wide(channels: int) -> nn.Module:
        def split() -> nn.Module:
            return Concat(conv_bn(384, 384, (1, 3)), conv_bn(384, 384, (3, 1)))

        double = chain(conv_bn(channels, 448), conv_bn(448, 384, 3), split())
        return Concat(conv_bn(channels, 320), chain(conv_bn(channels, 384), split()), double, pooled(channels, 192))

    def shrinking(channels: int, out: int, stride: int = 1) -> nn.Module:
        return conv_bn(channels, out, 3, stride, padded=False)

    halved = chain(conv_bn(288, 64), conv_bn(64, 96, 3), shrinking(96, 96, 2))
    far = chain(conv_bn(768, 192), conv_bn(192, 192, (1, 7)), conv_bn(192, 192, (7, 1)), shrinking(192, 192, 2))
    layers = [
        shrinking(3, 32, 2), shrinking(32, 32), conv_bn(32, 64, 3), nn.MaxPool2d(3, 2),
        conv_bn(64, 80), shrinking(80, 192), nn.MaxPool2d(3, 2),
        small(192, 32), small(256, 64), small(288, 64),
        Concat(shrinking(288, 384, 2), halved, nn.MaxPool2d(3, 2)),
        long(128), long(160), long(160), long(192),
        Concat(chain(conv_bn(768, 192), shrinking(192, 320, 2)), far, nn.MaxPool2d(3, 2)),
        wide(1280), wide(2048),
    ]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(2048, 1000))


def unet() -> nn.Module:
    """Return the network for two classes of pixels, with padding and batch norm, as it is used today."""

    def block(channels: int, out: int) -> list[nn.Module]:
        return [conv_bn(channels, out, 3), conv_bn(out, out, 3)]

    def level(channels: int, out: int) -> nn.Module:
        """Return a level of (N, out, H, W), with all the levels below it."""
        if out == 1024:
            return nn.Sequential(*block(channels, out))
        below = nn.MaxPool2d(2), level(out, 2 * out), nn.ConvTranspose2d(2 * out, out, 2, 2)
        return nn.Sequential(*block(channels, out), Concat(nn.Identity(), nn.Sequential(*below)), *block(2 * out, out))

    return nn.Sequential(level(3, 64), nn.Conv2d(64, 2, 1))


def vit_small() -> nn.Module:
    """Return the vision transformer of 384 channels and 6 heads, on patches of 16x16."""
    layers: list[nn.Module] = [nn.Conv2d(3, 384, 16, 16), Tokens(384, 14 * 14)]
    for _ in range(12):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(384, eps=1e-6), Attention(384, 6))))
        mixed = nn.Linear(384, 1536), nn.GELU(), nn.Linear(1536, 384)
        layers.append(Residual(nn.Sequential(nn.LayerNorm(384, eps=1e-6), *mixed)))
    return nn.Sequential(*layers, nn.LayerNorm(384, eps=1e-6), First(), nn.Linear(384, 1000))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": partial(resnet, (2, 2, 2, 2), bottleneck=False),
    "resnet50": partial(resnet, (3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": mobilenet_v2, "mobilenet_v3": mobilenet_v3, "mobilenet_v3_large": mobilenet_v3_large,
    "vgg16": partial(vgg, (2, 2, 3, 3, 3)), "vgg19": partial(vgg, (2, 2, 4, 4, 4)),
    "shufflenet_v2": shufflenet_v2, "squeezenet": squeezenet, "alexnet": alexnet, "densenet121": densenet121,
    "efficientnet_b0": efficientnet_b0, "convnext_tiny": convnext_tiny, "regnet_y_400mf": regnet_y_400mf,
    "inception_v3": inception_v3, "unet": unet, "vit_small": vit_small,
}  # fmt: skip
"""The functions that build each network, by its name."""

SIZES = {"inception_v3": 299}
"""The height and width of a network's images, in pixels, where they are others than `SIZE`."""

SIZE = 224
"""The height and width of images in most papers, in pixels."""
