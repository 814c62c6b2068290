"""Operators between convolutions on a GPU, beside a copy of as many bytes and beside PyTorch.

    python benchmarks/between.py -o between.json                # every kind, batches of 1 and 32, float32 and float16
    python benchmarks/between.py --kinds softmax,gelu --seconds 30
    python benchmarks/between.py --kinds average-pool-17-last,max-pool-5x5-last --batches 32 --dtypes float16,bfloat16

Each kind is a network of that operator alone. All are built first, side by side, each in a process of its own, and
compared with float64. Times are those of kernels, in microseconds a call, as CUDA's profiler has them: "copy" is of as
many bytes as the operator reads and writes, "torch" is PyTorch's eager mode. A row is written once it is measured,
and nothing is begun after so many seconds as `--seconds` says.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any, NamedTuple

import torch
from script import Document, Row, built_until, copy_of, options_of, profile_of
from torch import nn

from tvmconv import load
from tvmconv.bench.networks.models import SqueezeExcite
from tvmconv.network import build, import_model
from tvmconv.targets.threads import usable_cpus

CALLS = 20
"""The calls that are profiled."""
CLOSE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3.2e-2}
"""The largest error, as a share of the largest number, or of 1 if that is larger."""

Shape = tuple[int, ...]


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Kind(NamedTuple):
    """An operator and the shapes of its inputs without the batch, which comes first."""

    module: Callable[..., Any]
    shapes: tuple[Shape, ...]


def response_norm(x: torch.Tensor) -> torch.Tensor:
    norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    return x * (norm / (norm.mean(-1, keepdim=True) + 1e-6)) + x


def last(pool: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a pooling of an input whose channels are last."""
    return lambda x: pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def shuffled(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], x.shape[1], 3, 12, 64).permute(2, 0, 3, 1, 4).contiguous()


torch.manual_seed(7)  # processes have the same weights
KINDS = {
    "average-pool": Kind(nn.AvgPool2d(3, 1, 1), ((192, 35, 35),)),
    "average-pool-8": Kind(nn.AvgPool2d(3, 1, 1), ((2048, 8, 8),)),
    "average-pool-last": Kind(last(nn.AvgPool2d(3, 1, 1)), ((35, 35, 192),)),
    "average-pool-288-last": Kind(last(nn.AvgPool2d(3, 1, 1)), ((35, 35, 288),)),
    "average-pool-17-last": Kind(last(nn.AvgPool2d(3, 1, 1)), ((17, 17, 768),)),
    "average-pool-8-last": Kind(last(nn.AvgPool2d(3, 1, 1)), ((8, 8, 2048),)),
    "average-pool-5x5-last": Kind(last(nn.AvgPool2d(5, 1, 2)), ((35, 35, 192),)),
    "max-pool": Kind(nn.MaxPool2d(3, 2, 1), ((64, 112, 112),)),
    "max-pool-5x5-last": Kind(last(nn.MaxPool2d(5, 1, 2)), ((28, 28, 256),)),
    "plane-mean": Kind(nn.AdaptiveAvgPool2d(1), ((960, 7, 7),)),
    "plane-mean-28": Kind(nn.AdaptiveAvgPool2d(1), ((120, 28, 28),)),
    "plane-mean-last": Kind(lambda x: x.mean((1, 2)), ((28, 28, 192),)),
    "layer-norm": Kind(nn.LayerNorm(96), ((3136, 96),)),
    "layer-norm-768": Kind(nn.LayerNorm(768), ((197, 768),)),
    "group-norm": Kind(nn.GroupNorm(32, 256), ((256, 32, 32),)),
    "instance-norm": Kind(nn.InstanceNorm2d(64, affine=True), ((64, 56, 56),)),
    "rms-norm": Kind(nn.RMSNorm(768), ((197, 768),)),
    "response-norm": Kind(response_norm, ((28, 28, 768),)),
    "softmax": Kind(nn.Softmax(-1), ((12, 197, 197),)),
    "softmax-of-channels": Kind(nn.Softmax(1), ((21, 128, 128),)),
    "excitation": Kind(lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)), ((240, 28, 28),)),
    "squeeze": Kind(SqueezeExcite(1152, 48, nn.SiLU(), nn.Sigmoid()), ((1152, 7, 7),)),
    "squeeze-28": Kind(SqueezeExcite(240, 10, nn.SiLU(), nn.Sigmoid()), ((240, 28, 28),)),
    "gelu": Kind(nn.GELU(), ((384, 56, 56),)),
    "scale-and-add": Kind(lambda x, y: x * 1.5 + y, ((256, 56, 56), (256, 56, 56))),
    "nearest": Kind(nn.Upsample(scale_factor=2), ((128, 28, 28),)),
    "bilinear": Kind(nn.Upsample(scale_factor=2, mode="bilinear"), ((128, 28, 28),)),
    "concatenation": Kind(lambda x, y: torch.cat([x, y], 1), ((192, 35, 35), (64, 35, 35))),
    "channel-shuffle": Kind(shuffled, ((116, 28, 28),)),
    "to-channels-last": Kind(lambda x: x.permute(0, 2, 3, 1).contiguous(), ((96, 56, 56),)),
    "to-channels-first": Kind(lambda x: x.permute(0, 3, 1, 2).contiguous(), ((56, 56, 96),)),
    "heads": Kind(heads, ((197, 2304),)),
    "keys": Kind(lambda x: x.permute(0, 2, 3, 1).contiguous(), ((197, 12, 64),)),
}


class Case(NamedTuple):
    """A kind with a batch and a dtype."""

    kind: str
    batch: int
    dtype: str

    def module(self) -> nn.Module:
        found = KINDS[self.kind].module
        module = found if isinstance(found, nn.Module) else Function(found)
        return deepcopy(module).eval().to(getattr(torch, self.dtype))

    def inputs(self, device: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        shapes = [(self.batch, *shape) for shape in KINDS[self.kind].shapes]
        dtype = getattr(torch, self.dtype)
        return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def main() -> None:
    options = options_of(
        __doc__,
        kinds=list(KINDS),
        batches=[1, 32],
        dtypes=["float32", "float16"],
        seconds=95.0,
        jobs=usable_cpus(),
    ).parse_args()
    end, document = time.perf_counter() + options.seconds, Document(options.output, "cuda")
    cases = {case: (case,) for case in map(Case._make, product(options.kinds, options.batches, options.dtypes))}
    for case, path in built_until(end, options.jobs, built, cases):
        try:
            found = row_of(case, path())
        except TimeoutError:
            found = {"error": "the time was over"}
        except Exception as error:  # of any kind, so that the others are measured
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        row = {**case._asdict(), **found}
        document.add(row, json.dumps(row))


def built(case: Case, path: str) -> str:
    """Build a case's network in this process and write it to a file."""
    os.environ["TVMCONV_CACHE_DIR"] = os.devnull
    torch.set_num_threads(1)
    build(import_model(case.module(), tuple(case.inputs("cpu"))), "cuda").export(path)
    return path


@torch.no_grad()
def row_of(case: Case, path: str) -> Row:
    """Check a network's results, and return its times and those of PyTorch and of a copy."""
    network, module, inputs = load(path), case.module().cuda(), case.inputs("cuda")
    result = network(*inputs)
    expected = case.module().cuda().double()(*(x.double() for x in inputs))
    error = float((result - expected).abs().max() / max(1.0, float(expected.abs().max())))
    del expected
    nbytes = sum(x.nbytes for x in inputs) + result.nbytes
    ours, kernels = device_time(lambda: network(*inputs))
    theirs, _ = device_time(lambda: module(*inputs))
    copy, _ = device_time(copy_of(nbytes, "cuda"))
    times = {"us": round(ours, 2), "copy_us": round(copy, 2), "torch_us": round(theirs, 2)}
    wrong = {"error": f"an error of {error:.2g} of the largest number"} if error > CLOSE[case.dtype] else {}
    return {**times, "copies": round(ours / copy, 2), "mb": round(nbytes / 1e6, 2), "kernels": kernels, **wrong}


def device_time(call: Callable[[], Any]) -> tuple[float, dict[str, float]]:
    """Return the microseconds of a call's work on the GPU, and those of each of its kernels."""
    times = {each.key: float(each.self_device_time_total) / CALLS for each in profile_of(call, CALLS).key_averages()}
    kernels = {name: round(micros, 2) for name, micros in times.items() if micros > 0}
    return sum(kernels.values()), kernels


if __name__ == "__main__":
    main()
