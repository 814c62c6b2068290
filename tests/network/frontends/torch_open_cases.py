"""Operators of torch on images (batch, 6, height, width) whose sizes are open, each as a function of an image."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as fun

import tvmconv
from tests.torch_exports import by_onnx, onnx_by_dynamo, onnx_by_torchscript
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError

AUTO = torch.export.Dim.AUTO
EXAMPLE = (2, 6, 20, 24)
SIZES = (EXAMPLE, (3, 6, 17, 19), (1, 6, 26, 13))
"""The shapes of images that each case is tried with, the first one as the example of the export."""

Function = Callable[[torch.Tensor], Any]


def grid(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
    return x + rows / x.shape[2] - columns


def padded_to(x: torch.Tensor, multiple: int) -> torch.Tensor:
    return fun.pad(x, (0, -x.shape[3] % multiple, 0, -x.shape[2] % multiple))


def windows(x: torch.Tensor) -> torch.Tensor:
    """Return windows of 4x4 elements of an image that is padded to a multiple of that."""
    x = padded_to(x, 4)
    n, c, h, w = x.shape
    return x.view(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)


def scattered(x: torch.Tensor) -> torch.Tensor:
    index = torch.arange(x.shape[3]).flip(0).expand(x.shape[0], 6, x.shape[2], x.shape[3])
    return torch.zeros_like(x).scatter(3, index, x)


def with_nan(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with NaN instead of its largest elements: some in most rows, and none in the others."""
    return torch.where(x > 2.8, torch.nan, x)


def written(write: Callable[[torch.Tensor], object]) -> Function:
    """Return a function that writes to a copy of its operand and returns that."""

    def function(x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        write(copy)
        return copy

    return function


FUNCTIONS: dict[str, Function] = {
    "adaptive-avg-pool-1d": lambda x: fun.adaptive_avg_pool1d(x.flatten(2), 7),
    "adaptive-avg-pool-2d": lambda x: fun.adaptive_avg_pool2d(x, (3, 7)),
    "adaptive-avg-pool-1": lambda x: fun.adaptive_avg_pool2d(x, 1),
    "adaptive-avg-pool-one-axis": lambda x: fun.adaptive_avg_pool2d(x, (None, 1)),
    "adaptive-avg-pool-half": lambda x: fun.adaptive_avg_pool2d(x, (x.shape[2] // 2, x.shape[3] // 3)),
    "adaptive-avg-pool-3d": lambda x: fun.adaptive_avg_pool3d(x[:, None], 3),
    "adaptive-max-pool-indices": lambda x: fun.adaptive_max_pool2d(x, (3, 4), return_indices=True),
    "arange": lambda x: x + torch.arange(x.shape[3]) * 2 - torch.arange(1, 1 + x.shape[3], dtype=x.dtype),
    "arange-step": lambda x: torch.arange(0, x.shape[2], 3, dtype=x.dtype) * x.sum(),
    "argmax": lambda x: x.argmax(3),
    "avg-pool": lambda x: fun.avg_pool2d(x, 3, 2, 1),
    "avg-pool-ceil": lambda x: fun.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg-pool-ceil-1d": lambda x: fun.avg_pool1d(x.flatten(2), 5, 3, 2, ceil_mode=True, count_include_pad=False),
    "avg-pool-divisor": lambda x: fun.avg_pool2d(x, 2, divisor_override=3),
    "avg-pool-unpadded": lambda x: fun.avg_pool2d(x, (3, 2), (2, 3), 1, ceil_mode=True, count_include_pad=False),
    "batch-norm": lambda x: fun.batch_norm(x, torch.zeros(6), torch.ones(6) * 2),
    "cat": lambda x: torch.cat([x, x[:, :2], x.mean(1, keepdim=True)], 1),
    "cat-of-parts": lambda x: torch.cat([x[:, :, 1:], x, x[:, :, ::2]], 2),
    "cat-flat": lambda x: torch.cat([fun.max_pool2d(x, s).flatten(2) for s in (1, 2, 3)], 2),
    "channel-shuffle": lambda x: fun.channel_shuffle(x, 3),
    "chunk": lambda x: x.chunk(2, 1)[1] * x.chunk(3, 1)[0].mean(),
    "clamp": lambda x: x.clamp(min=x.mean((2, 3), keepdim=True)),
    "compare-size": lambda x: torch.where(torch.arange(x.shape[3]) < x.shape[2], x, -x),
    "conv-same": lambda x: fun.conv2d(x, torch.ones(4, 6, 3, 3), padding="same"),
    "conv-transpose": lambda x: fun.conv_transpose2d(x, torch.ones(6, 4, 3, 3), stride=2, padding=1, output_padding=1),
    "cumsum": lambda x: x.cumsum(2),
    "diff": lambda x: x.diff(dim=3),
    "div-by-flipped": lambda x: torch.div((x * 5).int() - 3, ((x * 3).int() * 2 + 1).flip(3), rounding_mode="floor"),
    "einsum": lambda x: torch.einsum("nchw,nchv->nwv", x, x),
    "expand": lambda x: x.mean(0, keepdim=True).expand_as(x) + x[:, :1].expand(-1, 6, -1, -1),
    "flip": lambda x: x.flip(2, 3),
    "float-sizes": lambda x: x[:, :, : int(x.shape[2] * 0.7), int(x.shape[3] * 0.5) :],
    "fold": lambda x: fun.fold(fun.unfold(x, 2, stride=2), (x.shape[2] // 2 * 2, x.shape[3] // 2 * 2), 2, stride=2),
    "full": lambda x: x * torch.full((x.shape[2], 1), 3.0) + torch.ones(x.shape[0], 1, 1, x.shape[3]),
    "gather": lambda x: x.gather(3, x.argsort(3)),
    "glu": lambda x: fun.glu(x, 1),
    "grid": grid,
    "grid-sample": lambda x: fun.grid_sample(
        x, torch.linspace(-1, 1, 24).reshape(1, 3, 4, 2).expand(x.shape[0], 3, 4, 2)
    ),
    "group-norm": lambda x: fun.group_norm(x, 3),
    "index-select": lambda x: x.index_select(2, torch.tensor([3, 0, 5])),
    "index-range": lambda x: x[:, :, torch.arange(x.shape[2]) // 2],
    "instance-norm": lambda x: fun.instance_norm(x),
    "layer-norm": lambda x: fun.layer_norm(x.permute(0, 2, 3, 1), (6,)),
    "masked-fill": lambda x: x.masked_fill(torch.ones(x.shape[2], x.shape[3], dtype=torch.bool).triu(1), -1),
    "matmul": lambda x: x @ x.transpose(2, 3),
    "max-min-of-sizes": lambda x: x[:, :, : min(x.shape[2], 12), : max(x.shape[3] // 2, 3)],
    "max-pool-ceil": lambda x: fun.max_pool2d(x, 3, 2, ceil_mode=True),
    "max-pool-ceil-padded": lambda x: fun.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max-pool-indices": lambda x: fun.max_pool2d(x, 2, return_indices=True),
    "max-pool-indices-padded": lambda x: fun.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True),
    "max-pool-3d-ceil": lambda x: fun.max_pool3d(x[:, None], (2, 3, 3), 2, ceil_mode=True),
    "mean-by-size": lambda x: x.sum((2, 3)) / (x.shape[2] * x.shape[3]),
    "nan-comparisons": lambda x: (
        with_nan(x) != 0,
        ~(with_nan(x) >= 0),
        with_nan(x) != x,
        with_nan(x).count_nonzero(3),
    ),
    "nan-extremes": lambda x: (with_nan(x).amax(3), with_nan(x).amin((2, 3)), with_nan(x).max(1)[0]),
    "nan-indices": lambda x: (with_nan(x).argmax(3), with_nan(x).argmin(2)),
    "narrow": lambda x: x.narrow(2, 3, x.shape[2] - 5),
    "norm": lambda x: fun.normalize(x, dim=1),
    "pad": lambda x: fun.pad(x, (1, 2, 3, 0), value=2.0),
    "pad-circular": lambda x: fun.pad(x, (1, 2, 3, 0), mode="circular"),
    "pad-reflect": lambda x: fun.pad(x, (1, 2, 3, 0), mode="reflect"),
    "pad-replicate": lambda x: fun.pad(x, (1, 2, 3, 0), mode="replicate"),
    "pad-to-multiple": lambda x: padded_to(x, 8),
    "pixel-shuffle": lambda x: fun.pixel_shuffle(x.repeat(1, 2, 1, 1), 2),
    "pixel-unshuffle": lambda x: fun.pixel_unshuffle(x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2),
    "repeat": lambda x: x.repeat(2, 1, 1, 3),
    "repeat-interleave": lambda x: x.repeat_interleave(2, 3),
    "roll": lambda x: x.roll((1, -2), (2, 3)),
    "roll-by-size": lambda x: x.roll(x.shape[2] // 2, 2),
    "roll-flat": lambda x: x.roll(5),
    "scatter": scattered,
    "select": lambda x: x[:, :, -1] + x[:, 2, 3:4],
    "select-by-size": lambda x: x[:, :, x.shape[2] // 2],
    "slice": lambda x: x[:, :, 2:-3, -7:],
    "slice-steps": lambda x: x[:, 1::2, 1::2, ::3],
    "softmax": lambda x: fun.softmax(x.flatten(2), 2),
    "split": lambda x: x.split([1, 2, 3], 1),
    "split-size": lambda x: x.split([5, x.shape[2] - 5], 2)[1],
    "squeeze": lambda x: x.mean(2, keepdim=True).squeeze(2).unsqueeze(1),
    "stack": lambda x: torch.stack([x, x * 2], 2).flatten(1, 2),
    "std": lambda x: x.std((2, 3)) + x.var(1).mean((1, 2))[:, None],
    "tensor-times-sizes": lambda x: x * x.shape[2] + x.shape[3] / 2 - (x.shape[0] - 1) ** 0.5,
    "topk": lambda x: x.topk(3, 3)[0],
    "transposed-view": lambda x: x.transpose(1, 3).reshape(x.shape[0], -1, 6),
    "tril": lambda x: x.tril(),
    "unbind": lambda x: x.unbind(1)[2],
    "unfold": lambda x: x.unfold(2, 3, 2).unfold(3, 4, 1),
    "unfold-windows": lambda x: fun.unfold(x, 3, padding=1, stride=2),
    "unflatten": lambda x: x.flatten(2).unflatten(2, (x.shape[2], x.shape[3])),
    "view": lambda x: x.view(x.shape[0], 3, 2, -1).mean(2),
    "where": lambda x: torch.where(x > 0, x, x.mean((2, 3), keepdim=True)),
    "windows": windows,
}

RESAMPLED: dict[str, dict[str, Any]] = {
    f"{mode}-{name}": {"mode": mode, **options}
    for mode, kinds in (
        ("nearest", ("twice", "1.5", "0.7", "by-size", "to-16", "recomputed")),
        ("nearest-exact", ("twice", "0.7", "by-size", "to-16")),
        ("bilinear", ("twice", "1.5", "0.7", "by-size", "to-16", "recomputed", "aligned", "smooth", "smooth-1.5")),
        ("bicubic", ("twice", "0.7", "by-size", "aligned", "smooth")),
    )
    for name, options in {
        "twice": {"scale_factor": 2.0},
        "1.5": {"scale_factor": 1.5},
        "0.7": {"scale_factor": 0.7},
        "by-size": {"size": None},
        "to-16": {"size": (16, 9)},
        "recomputed": {"scale_factor": 1.3, "recompute_scale_factor": True},
        "aligned": {"size": None, "align_corners": True},
        "smooth": {"size": None, "antialias": True},
        "smooth-1.5": {"scale_factor": (0.4, 1.5), "antialias": True},
    }.items()
    if name in kinds
}


def resampled(options: dict[str, Any]) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        size = {"size": (x.shape[2] // 2 + 3, x.shape[3] * 3 - 1)} if options.get("size", 0) is None else {}
        return fun.interpolate(x, **{**options, **size})

    return function


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "behind": lambda x: x[:, :, 1:].fill_(5.0),
    "before": lambda x: x[:, :, : x.shape[2] // 2].mul_(2.0),
    "at-the-end": lambda x: x[:, :, -4:-2].zero_(),
    "in-both": lambda x: x[:, :, 1:3, 2:-1].add_(1.0),
    "each-third": lambda x: x[:, :, 1:-2:3].copy_(x[:, :, 2:-1:3]),
    "row": lambda x: x[:, :, -1].fill_(3.0),
    "mask": lambda x: x.__setitem__(x > 0.5, 0.0),
}
"""Functions that write to a part of their operand."""

FUNCTIONS |= {f"write-{name}": written(write) for name, write in WRITES.items()}
FUNCTIONS |= {f"interpolate-{name}": resampled(options) for name, options in RESAMPLED.items()}
FUNCTIONS |= {
    "interpolate-linear": lambda x: fun.interpolate(x.flatten(2), scale_factor=0.6, mode="linear"),
    "interpolate-trilinear": lambda x: fun.interpolate(x[:, None], size=(4, x.shape[2] + 1, 11), mode="trilinear"),
    "interpolate-like-another": lambda x: x + fun.interpolate(fun.max_pool2d(x, 3, 2, 1), size=x.shape[2:]),
    "interpolate-twice-and-crop": lambda x: (
        x + fun.interpolate(fun.avg_pool2d(x, 2, ceil_mode=True), scale_factor=2)[:, :, : x.shape[2], : x.shape[3]]
    ),
}


class Applied(torch.nn.Module):
    """A function of an image as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@dataclass(frozen=True)
class Outcome:
    """What became of a module at the sizes of a table."""

    kind: str
    """"right", "refused", "wrong" or "raw"."""
    text: str = ""


def image(shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count, dtype=torch.float64) * 0.7).sin().mul(3).float().reshape(shape)


def export_open(module: torch.nn.Module, example: tuple[int, ...], axes: tuple[int, ...] = (0, 2, 3)) -> Any:
    """Return a program with open batch, height and width, in eval mode."""
    with torch.no_grad():
        return torch.export.export(module.eval(), (image(example),), dynamic_shapes=(dict.fromkeys(axes, AUTO),))


@dataclass(frozen=True)
class Exported:
    """A module with open batch, height and width, as an exporter of torch writes it."""

    source: Any
    """What `tvmconv.import_model` takes."""
    run: Callable[[torch.Tensor], Any]
    """The function that computes what the exporter wrote; it raises for sizes for which that was not made."""


def by_torch_export(module: torch.nn.Module, example: tuple[int, ...]) -> Exported:
    program = export_open(module, example)
    return Exported(program, program.module())


def by_torchscript(module: torch.nn.Module, example: tuple[int, ...]) -> Exported:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # of assertions in the modules
        data = onnx_by_torchscript(module, image(example))
    return Exported(data, by_onnx(data))


def by_dynamo(module: torch.nn.Module, example: tuple[int, ...]) -> Exported:
    data = onnx_by_dynamo(module, image(example), (dict.fromkeys((0, 2, 3), AUTO),))
    return Exported(data, by_onnx(data))


EXPORTERS: dict[str, Callable[[torch.nn.Module, tuple[int, ...]], Exported]] = {
    "torch-export": by_torch_export,
    "torchscript": by_torchscript,
    "dynamo": by_dynamo,
}
"""The exporters of torch; the last two write ONNX."""


def outcome(
    module: torch.nn.Module,
    sizes: tuple[tuple[int, ...], ...] = SIZES,
    exporter: str = "torch-export",
    tolerance: float = 2e-5,
    device: str = "cpu",
) -> Outcome:
    """Compare a network on a device of torch with the exported program at each of the sizes.

    "refused" is a model, or a size that the program takes, that tvmconv refuses; sizes that the program refuses have to
    be refused by tvmconv too, or be right.
    """
    exported = EXPORTERS[exporter](module, sizes[0])
    try:
        network = tvmconv.build(tvmconv.import_model(exported.source), "llvm" if device == "cpu" else device)
    except UnsupportedModelError as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return Outcome("raw", f"{type(error).__name__}: {error}"[:300])
    for shape in sizes:
        x = image(shape)
        with torch.no_grad():
            try:
                expected, is_taken = exported.run(x), True
            except Exception:
                expected, is_taken = module(x), False
        try:
            results = network(x.to(device))
        except InvalidArgumentError as error:
            if is_taken:
                return Outcome("refused", f"{shape}: {error}")
            continue
        except Exception as error:
            return Outcome("raw", f"{shape}: {type(error).__name__}: {error}"[:300])
        pairs = zip(results, expected, strict=True) if isinstance(expected, (tuple, list)) else [(results, expected)]
        for y, reference in pairs:
            if tuple(y.shape) != tuple(reference.shape) or y.dtype != reference.dtype:
                return Outcome("wrong", f"{shape}: {tuple(y.shape)} {y.dtype}, not {tuple(reference.shape)}")
            got, wanted = y.cpu().double(), reference.double()
            if not torch.equal(got.isnan(), wanted.isnan()):
                return Outcome("wrong", f"{shape}: NaN is elsewhere")
            error = float((got - wanted).nan_to_num().abs().max() / max(1, wanted.nan_to_num().abs().max()))
            if not error < tolerance:
                return Outcome("wrong", f"{shape}: error {error:.2g}")
    return Outcome("right")
