"""Pieces of networks as torch's users write them, each for images (batch, 3, height, width) of open sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fun

EXAMPLE = (2, 3, 32, 40)
SIZES = (EXAMPLE, (3, 3, 48, 36), (1, 3, 33, 27), (2, 3, 24, 56))
"""Shapes of images; the first one is the example of the export."""


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU) -> nn.Module:
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(outputs), act())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv(3, 8), nn.Conv2d(8, 16, 1, 2)
        self.a, self.b = conv(8, 16, 3, 2), conv(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return fun.relu(self.b(self.a(x)) + self.down(x))


class SqueezeExcite(nn.Module):
    """A block of MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv(3, 16, 1, act=nn.Hardswish), conv(16, 16, 5, 2, 16, nn.Hardswish)
        self.squeeze, self.excite, self.project = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), conv(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.expand(x))
        s = fun.hardsigmoid(self.excite(fun.relu(self.squeeze(fun.adaptive_avg_pool2d(x, 1)))))
        return self.project(x * s)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(fun.gelu(self.up(y)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Odd sizes are cropped or resized to those of the other branch."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 16), conv(16, 16)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2) if transposed else None
        self.out = conv(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        y = self.c(self.b(fun.max_pool2d(a, 2, ceil_mode=True)))
        y = fun.interpolate(y, size=a.shape[2:], mode="bilinear", align_corners=True) if self.up is None else self.up(y)
        return self.out(torch.cat([a, y[:, :, : a.shape[2], : a.shape[3]]], 1))


class Pyramid(nn.Module):
    """A feature pyramid, whose levels are resized to the next finer one."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([conv(3, 8, 3, 2), conv(8, 12, 3, 2), conv(12, 16, 3, 2)])
        self.lateral = nn.ModuleList([nn.Conv2d(c, 8, 1) for c in (8, 12, 16)])

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for level, lateral in zip(self.levels, self.lateral, strict=True):
            x = level(x)
            found.append(lateral(x))
        for i in (1, 0):
            found[i] = found[i] + fun.interpolate(found[i + 1], size=found[i].shape[-2:], mode="nearest")
        return found


class TextNeck(nn.Module):
    """The neck of PP-OCR's detection: levels are doubled, added and joined at the finest one."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([conv(3, 8, 3, 2), conv(8, 8, 3, 2), conv(8, 8, 3, 2)])
        self.head = nn.Sequential(nn.ConvTranspose2d(24, 4, 2, 2), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = fun.pad(x, (0, -x.shape[3] % 8, 0, -x.shape[2] % 8))
        a = self.levels[0](x)
        b = self.levels[1](a)
        c = self.levels[2](b)
        b = b + fun.interpolate(c, scale_factor=2)
        a = a + fun.interpolate(b, scale_factor=2)
        return self.head(torch.cat([a, fun.interpolate(b, scale_factor=2), fun.interpolate(c, scale_factor=4)], 1))


class Atrous(nn.Module):
    """DeepLab's ASPP with its branch of the whole image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8, 3, 2)
        self.branches = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.whole, self.out = conv(8, 4, 1), conv(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        whole = fun.interpolate(self.whole(fun.adaptive_avg_pool2d(y, 1)), size=y.shape[-2:], mode="bilinear")
        y = self.out(torch.cat([*(branch(y) for branch in self.branches), whole], 1))
        return fun.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class PyramidPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8, 3, 2)
        self.parts = nn.ModuleList([conv(8, 2, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = [part(fun.adaptive_avg_pool2d(x, n)) for part, n in zip(self.parts, (1, 2, 3, 6), strict=True)]
        return torch.cat([x, *(fun.interpolate(y, x.shape[2:], mode="bilinear") for y in pooled)], 1)


class ShiftedWindows(nn.Module):
    """Attention of Swin in shifted windows of an image that is padded to a multiple of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out = nn.Conv2d(3, 16, 2, 2), nn.Linear(16, 48), nn.Linear(16, 16)
        self.bias = nn.Parameter(torch.linspace(-1, 1, 49 * 2).reshape(49, 2))
        rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        r, c = rows.flatten(), columns.flatten()
        self.register_buffer("where", (r[:, None] - r + 3) * 7 + (c[:, None] - c + 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        x = fun.pad(x, (0, 0, 0, -w % 4, 0, -h % 4))
        rows, columns = x.shape[1] // 4, x.shape[2] // 4
        x = x.roll((-2, -2), (1, 2)).view(n, rows, 4, columns, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-2, -1) / math.sqrt(8)
        weights = weights + self.bias[self.where.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        x = self.out((weights.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        x = x.view(n, rows, columns, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, rows * 4, columns * 4, c)
        return x.roll((2, 2), (1, 2))[:, :h, :w].contiguous()


class Transformer(nn.Module):
    """A vision transformer, whose position embedding is resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.ones(1, 1, 16))
        self.positions = nn.Parameter(torch.linspace(-1, 1, 16 * 16).reshape(1, 16, 4, 4))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x + fun.interpolate(self.positions, size=x.shape[2:], mode="bicubic", align_corners=False)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1)
        return self.block(x)[:, 0]


class PatchMerging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(12), nn.Linear(12, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = fun.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)).permute(0, 2, 3, 1)
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Attentive(nn.Module):
    """CBAM: attention to channels, and then to pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared = conv(3, 8), nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8))
        self.plane = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        channels = self.shared(x.mean((2, 3))) + self.shared(x.amax((2, 3)))
        x = x * channels.sigmoid()[:, :, None, None]
        return x * self.plane(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)).sigmoid()


class ChannelConvolution(nn.Module):
    """ECA: a convolution over the means of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = conv(3, 8), nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv(x.mean((2, 3), keepdim=True).squeeze(-1).transpose(-1, -2))
        return x * y.transpose(-1, -2).unsqueeze(-1).sigmoid()


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 8), nn.Conv2d(8, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return fun.pixel_shuffle(self.b(self.a(x)), 2) + fun.interpolate(x, scale_factor=2, mode="bicubic")


class Unshuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        x = fun.pad(x, (0, -w % 2, 0, -h % 2), mode="replicate")
        return fun.pixel_shuffle(self.conv(fun.pixel_unshuffle(x, 2)), 2)[:, :, :h, :w]


class Detector(nn.Module):
    """The head of YOLO, with its grid."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([conv(3, 8, 3, 4), conv(8, 8, 3, 2)])
        self.heads = nn.ModuleList([nn.Conv2d(8, 2 * 7, 1) for _ in range(2)])
        self.register_buffer("anchors", torch.tensor([[[10.0, 13], [16, 30]], [[33, 23], [30, 61]]]))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for level, head, anchors, stride in zip(self.levels, self.heads, self.anchors, (4, 8), strict=True):
            x = level(x)
            n, _, h, w = x.shape
            y = head(x).view(n, 2, 7, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack((columns, rows), 2).view(1, 1, h, w, 2).float()
            xy, wh = (y[..., :2] * 2 - 0.5 + grid) * stride, (y[..., 2:4] * 2) ** 2 * anchors.view(1, 2, 1, 1, 2)
            found.append(torch.cat((xy, wh, y[..., 4:]), -1).view(n, -1, 7))
        return torch.cat(found, 1)


class Positions(nn.Module):
    """The positions of DETR, summed up over a mask of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mask = torch.ones(x.shape[0], x.shape[2], x.shape[3])
        rows, columns = mask.cumsum(1), mask.cumsum(2)
        rows = rows / (rows[:, -1:, :] + 1e-6) * 2 * math.pi
        columns = columns / (columns[:, :, -1:] + 1e-6) * 2 * math.pi
        steps = 10000 ** (2 * torch.div(torch.arange(4), 2, rounding_mode="floor") / 4)
        parts = []
        for positions in (rows, columns):
            angles = positions[:, :, :, None] / steps
            parts.append(torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), 4).flatten(3))
        return x + torch.cat(parts, 3).permute(0, 3, 1, 2)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = conv(3, 8), conv(8, 4, 1), conv(8, 4, 5), conv(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = fun.max_pool2d(self.stem(x), 3, 2, ceil_mode=True)
        pooled = self.c(fun.max_pool2d(x, 3, 1, 1, ceil_mode=True))
        y = torch.cat([self.a(x), self.b(x), pooled, fun.avg_pool2d(x, 3, 1, 1, count_include_pad=False)], 1)
        return fun.max_pool2d(y, 2, 2, ceil_mode=True)


class SpatialPools(nn.Module):
    """SPP in its two kinds: pools of one size, and a vector of adaptive pools."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = conv(3, 4, 3, 2), nn.Linear(4 * (1 + 4 + 9), 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        same = torch.cat([x, *(fun.max_pool2d(x, k, 1, k // 2) for k in (5, 9))], 1)
        return same, self.out(torch.cat([fun.adaptive_max_pool2d(x, n).flatten(1) for n in (1, 2, 3)], 1))


class BlurPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8)
        line = torch.tensor([1.0, 2, 1])
        self.register_buffer("kernel", (line[:, None] * line / 16).expand(8, 1, 3, 3).contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return fun.conv2d(fun.pad(self.stem(x), (1, 1, 1, 1), mode="reflect"), self.kernel, stride=2, groups=8)


class SamePadding(nn.Module):
    """TensorFlow's padding, as timm's Conv2dSame computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 5, 2, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            pads: list[Any] = []
            for size, k in zip(x.shape[:1:-1], layer.kernel_size, strict=True):
                total = max((math.ceil(size / 2) - 1) * 2 + k - size, 0)
                pads += [total // 2, total - total // 2]
            x = fun.relu(layer(fun.pad(x, pads)))
        return x


class Halo(nn.Module):
    """Attention of blocks to themselves and what surrounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.kv = conv(3, 8), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(fun.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4)))
        n, c, h, w = x.shape
        q = self.q(x).reshape(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 16, c)
        kv = fun.pad(self.kv(x), (1, 1, 1, 1)).unfold(2, 6, 4).unfold(3, 6, 4)
        k, v = kv.reshape(n, 2 * c, -1, 36).permute(0, 2, 3, 1).split([c, c], -1)
        y = (q @ k.transpose(-1, -2) / math.sqrt(c)).softmax(-1) @ v
        return y.reshape(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)


class Causal(nn.Module):
    """A gated convolution of rows, which sees nothing behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(3, 16, 3, dilation=2), nn.Conv1d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.mean(2)
        return rows + self.out(fun.glu(self.conv(fun.pad(rows, (4, 0))), 1))


class Spectrogram(nn.Module):
    """A Fourier transform of frames by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.arange(9)[:, None] * torch.arange(16) / 16
        self.register_buffer("waves", torch.cat([angles.cos(), -angles.sin()])[:, None] * torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        sound = fun.pad(x.flatten(1)[:, None], (8, 8), mode="reflect")
        real, imaginary = fun.conv1d(sound, self.waves, stride=8).chunk(2, 1)
        return torch.log(real**2 + imaginary**2 + 1e-3)


class Reader(nn.Module):
    """A reader of text: columns of the image are a sequence of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.classes = conv(3, 8, 3, 2), conv(8, 16, 3, 2), nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        x = fun.avg_pool2d(x, (2, 1), (2, 1)).mean(2).permute(0, 2, 1)
        return self.classes(x).log_softmax(2)


class EfficientAttention(nn.Module):
    """Attention of Segformer to an image that is made smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.kv = nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(16, 16), nn.Linear(16, 32)
        self.reduce, self.norm = nn.Conv2d(16, 16, 4, 4), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        n, c, h, w = x.shape
        rows = x.flatten(2).transpose(1, 2)
        q = self.q(rows).reshape(n, h * w, 2, 8).permute(0, 2, 1, 3)
        small = self.norm(self.reduce(rows.transpose(1, 2).reshape(n, c, h, w)).flatten(2).transpose(1, 2))
        k, v = self.kv(small).reshape(n, -1, 2, 2, 8).permute(2, 0, 3, 1, 4)
        y = fun.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(n, h * w, c).transpose(1, 2).reshape(n, c, h, w)


class Mixer(nn.Module):
    """An MLP mixer, which takes images of one size; smaller ones are made of others first."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.norm, self.tokens, self.channels = nn.LayerNorm(8), nn.Linear(16, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(fun.interpolate(x, size=(32, 32), mode="bilinear")).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(fun.gelu(x))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.group, self.instance = nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return fun.silu(self.instance(self.b(fun.silu(self.group(self.a(x))))))


class Axes(nn.Module):
    """Axes that come, go and change."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        rows = x.permute(0, 2, 1, 3).reshape(n * h, 3, w)
        y = self.conv(rows).reshape(n, h, 4, w).transpose(1, 2).unsqueeze(1).squeeze(1)
        return torch.einsum("nchw,nchv->ncwv", y, y).mean(1, keepdim=True).squeeze(1).movedim(1, 2)


class Coordinates(nn.Module):
    """CoordConv."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        rows = (torch.arange(h, dtype=x.dtype) / (h - 1) * 2 - 1)[None, None, :, None].expand(n, 1, h, w)
        columns = (torch.arange(w, dtype=x.dtype) / (w - 1) * 2 - 1)[None, None, None].expand(n, 1, h, w)
        radius = torch.sqrt(rows**2 + columns**2)
        return self.conv(torch.cat([x, rows, columns, radius], 1))


class Dynamic(nn.Module):
    """A convolution whose weight is a mixture that the image decides on."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(3, 4)
        self.weights = nn.Parameter(torch.linspace(-1, 1, 4 * 8 * 27).reshape(4, 8 * 27))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        mixed = self.route(x.mean((2, 3))).softmax(1) @ self.weights
        columns = fun.unfold(x, 3, padding=1)
        return (mixed.view(n, 8, c * 9) @ columns).view(n, 8, h, w)


PIECES: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "squeeze-excite": SqueezeExcite,
    "convnext": ConvNeXt,
    "u-net-resized": lambda: UNet(False),
    "u-net-transposed": lambda: UNet(True),
    "feature-pyramid": Pyramid,
    "text-neck": TextNeck,
    "atrous": Atrous,
    "pyramid-pooling": PyramidPooling,
    "shifted-windows": ShiftedWindows,
    "transformer": Transformer,
    "patch-merging": PatchMerging,
    "cbam": Attentive,
    "channel-convolution": ChannelConvolution,
    "super-resolution": SuperResolution,
    "unshuffled": Unshuffled,
    "yolo": Detector,
    "positions": Positions,
    "inception": Inception,
    "spatial-pools": SpatialPools,
    "blur-pool": BlurPool,
    "same-padding": SamePadding,
    "halo": Halo,
    "causal": Causal,
    "spectrogram": Spectrogram,
    "reader": Reader,
    "efficient-attention": EfficientAttention,
    "mixer": Mixer,
    "norms": Norms,
    "axes": Axes,
    "coordinates": Coordinates,
    "dynamic": Dynamic,
}
"""The modules by name."""


def piece(name: str) -> nn.Module:
    """Return a module, whose weights are the same each time, in eval mode."""
    torch.manual_seed(1)
    return PIECES[name]().eval()
