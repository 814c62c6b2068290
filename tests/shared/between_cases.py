"""Networks of what stands between convolutions, as functions of torch with the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

from tests.shared.torch_modules import Function, torch

functional = torch.nn.functional

Shape = tuple[int, ...]


class Case(NamedTuple):
    """A network, the shapes of its inputs, and the number of kernels that it takes."""

    function: Callable[..., Any]
    shapes: tuple[Shape, ...]
    kernels: int = 1

    @property
    def module(self) -> Any:
        torch.manual_seed(7)
        # A copy: tests bring it to another type and device.
        module = deepcopy(self.function) if isinstance(self.function, torch.nn.Module) else Function(self.function)
        return module.eval()

    def inputs(self) -> list[Any]:
        generator = torch.Generator().manual_seed(8)
        return [torch.randn(shape, generator=generator) for shape in self.shapes]


def response_norm(x: Any) -> Any:
    norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    return x * (norm / (norm.mean(-1, keepdim=True) + 1e-6)) + x


def shuffled(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)


def grown(x: Any, y: Any) -> Any:
    """Bring four parts of the channels of x, which are last, to neighbouring pixels, and join those with y."""
    n, h, w, c = x.shape
    larger = x.view(n, h, w, 2, 2, c // 4).permute(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, c // 4)
    return torch.cat([larger[:, 1:-1, 1:], y], 3)


def dense_layer(*parts: Any) -> Any:
    """Scale channels of several tensors, which are last, as DenseNet does before a convolution."""
    joined = torch.cat(parts, 3)
    factors = (torch.arange(joined.shape[3], device=joined.device) % 96).to(joined.dtype) / 64 - 1
    return torch.relu(joined * factors + 0.5)


def excited(x: Any) -> Any:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def values(x: Any) -> Any:
    """Return a third of the channels in rows, padded to whole vectors, with the channels of groups in rows."""
    return functional.pad(x[:, :, 128:].reshape(2, 53, 2, 32).permute(0, 2, 3, 1), (0, 3)).reshape(128, 56)


CASES = {
    "average-pool": Case(torch.nn.AvgPool2d(3, 1, 1), ((2, 24, 17, 19),)),
    "average-pool-vectors": Case(torch.nn.AvgPool2d(3, 1, 1, count_include_pad=False), ((2, 6, 12, 12),)),
    "max-pool": Case(torch.nn.MaxPool2d(3, 2, 1), ((2, 12, 25, 24),)),
    "max-pool-1d": Case(torch.nn.MaxPool1d(2, 2), ((2, 5, 31),)),
    "plane-mean": Case(torch.nn.AdaptiveAvgPool2d(1), ((3, 10, 14, 14),)),
    "plane-mean-odd": Case(torch.nn.AdaptiveAvgPool2d(1), ((1, 7, 13, 11),)),
    "plane-mean-last": Case(lambda x: x.mean((1, 2)), ((2, 9, 10, 48),)),
    "layer-norm": Case(torch.nn.LayerNorm(96), ((2, 30, 96),)),
    "layer-norm-wide": Case(torch.nn.LayerNorm(1537), ((3, 1537),)),
    "norm-of-a-sum": Case(lambda x, y: functional.layer_norm(x * 0.5 + y, (48,)), ((2, 9, 48), (2, 9, 48))),
    "norm-of-channels": Case(lambda x: functional.normalize(x, dim=1), ((2, 20, 6, 10),), 2),
    "group-norm": Case(torch.nn.GroupNorm(4, 24), ((2, 24, 9, 10),)),
    "instance-norm": Case(torch.nn.InstanceNorm2d(6, affine=True), ((2, 6, 12, 10),)),
    "rms-norm": Case(torch.nn.RMSNorm(100), ((2, 9, 100),)),
    "response-norm": Case(response_norm, ((2, 14, 14, 40),), 2),
    "softmax": Case(torch.nn.Softmax(-1), ((2, 3, 17, 49),)),
    "softmax-of-channels": Case(torch.nn.Softmax(1), ((2, 19, 8, 12),)),
    "log-softmax": Case(torch.nn.LogSoftmax(-1), ((5, 1000),)),
    "excitation": Case(excited, ((2, 20, 12, 12),)),
    "gelu": Case(lambda x, y: functional.gelu(x + 1) * y, ((2, 10, 7, 7), (2, 10, 1, 1))),
    "nearest": Case(torch.nn.Upsample(scale_factor=2), ((2, 6, 7, 9),)),
    "bilinear": Case(torch.nn.Upsample(scale_factor=2, mode="bilinear"), ((2, 6, 8, 8),)),
    "bilinear-thirds": Case(torch.nn.Upsample(scale_factor=3, mode="bilinear"), ((1, 4, 5, 8),)),
    "bilinear-odd": Case(torch.nn.Upsample(size=(11, 13), mode="bilinear", align_corners=True), ((1, 4, 5, 8),)),
    "concatenation": Case(lambda x, y: torch.cat([x, y], 1), ((2, 5, 6, 6), (2, 3, 6, 6))),
    "slice": Case(lambda x: x[:, 1:, ::2, 1:-1] * 2, ((2, 5, 9, 10),)),
    "channel-shuffle": Case(shuffled, ((2, 12, 6, 6),)),
    "pixel-shuffle": Case(torch.nn.PixelShuffle(2), ((2, 12, 6, 7),)),
    "depth-to-space": Case(grown, ((2, 5, 6, 64), (2, 8, 11, 8))),
    "dense-layer": Case(dense_layer, ((2, 6, 8, 64), (2, 6, 8, 32), (2, 6, 8, 32))),
    "dense-layer-odd": Case(dense_layer, ((1, 3, 3, 24), (1, 3, 3, 12), (1, 3, 3, 5))),
    "to-channels-last": Case(lambda x: x.permute(0, 2, 3, 1) * 2, ((2, 40, 9, 9),)),
    "to-channels-first": Case(lambda x: torch.relu(x.permute(0, 3, 1, 2)), ((2, 9, 9, 40),)),
    "attention": Case(lambda x: x.reshape(2, 49, 3, 4, 32).permute(2, 0, 3, 1, 4), ((2, 49, 384),)),
    "values": Case(values, ((2, 53, 192),)),
    "keys": Case(lambda x: x.permute(0, 2, 3, 1) + 1, ((2, 50, 3, 32),)),
}
