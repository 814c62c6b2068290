"""Peers that run PyTorch: cuDNN and its own kernels on a GPU, oneDNN on a CPU; eager, and compiled by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING, Any

from tvmconv.problem.activations import clip
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from .peer import Call, Operands, Peer

if TYPE_CHECKING:
    import tvm

TEN_BITS = 2.0**-10
"""The relative rounding error of float16 and TF32, if a conversion cuts bits off."""


@dataclass(frozen=True)
class PyTorch(Peer):
    """Eager PyTorch, with cuDNN's own search for the fastest algorithm: an epilogue comes operation by operation."""

    name: str = "pytorch"
    channels_last: bool = False
    tf32: bool = False
    half: bool = False

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        if (self.tf32 or self.half) and (not backend_of(target).on_gpu or workload.dtype != "float32"):
            return "for float32 on a GPU"
        return None

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        import torch

        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False
        converted = [self._convert(padded(workload, operands)) for operands in sets]
        forward = self._forward(workload, target)
        return [partial(forward, **operands) for operands in converted]

    def unit(self, workload: ConvWorkload) -> float:
        return TEN_BITS if self.tf32 or self.half else super().unit(workload)

    def _convert(self, operands: Operands) -> Operands:
        import torch

        dtype = torch.float16 if self.half else operands["x"].dtype
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return {
            name: tensor.to(dtype, memory_format=layout) if tensor.dim() == 4 else tensor.to(dtype)
            for name, tensor in operands.items()
        }

    def _forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import torch

        forward = convolution(workload)
        if not self.tf32:
            return forward

        def with_tf32(**operands: Any) -> Any:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
                return forward(**operands)

        return with_tf32


@dataclass(frozen=True)
class Compiled(PyTorch):
    """`torch.compile` of the convolution and its epilogue together.

    On a GPU it may try its own kernels for dense convolutions. For grouped ones it has none worth the minutes: on an
    H100 the best of them took 70 times as long as cuDNN's for 256 channels of 21x21.
    """

    name: str = "torch-compile"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        if backend_of(target).on_gpu and find_spec("triton") is None:
            return "triton is not installed"
        return None if which("g++") or which("clang++") else "it needs a C++ compiler"

    def _forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import torch

        torch._dynamo.reset()  # after some shapes it would leave the function as it is
        mode = "max-autotune-no-cudagraphs" if backend_of(target).on_gpu and workload.groups == 1 else None
        compiled: Callable[..., Any] = torch.compile(convolution(workload), mode=mode)
        return compiled


def padded(workload: ConvWorkload, operands: Operands) -> Operands:
    """Return the operands as PyTorch takes them: w (K, C / groups, R, S), vectors (K, 1, 1) in the dtype of x.

    x has its padding, where that is not the same on opposite sides: PyTorch could not add it.
    """
    import torch

    x = operands["x"]
    others = {name: operands[name][:, None, None].to(x.dtype) for name in operands if name in ("scale", "shift")}
    if "residual" in operands:
        others["residual"] = operands["residual"]
    top, left, bottom, right = workload.padding
    if (top, left) != (bottom, right):
        x = torch.nn.functional.pad(x, (left, right, top, bottom))
    return {"x": x, "w": operands["w"].reshape(workload.out_channels, -1, *workload.kernel), **others}


def own_padding(workload: ConvWorkload) -> tuple[int, int]:
    """Return the padding that is left to PyTorch, after `padded`."""
    top, left, bottom, right = workload.padding
    return (top, left) if (top, left) == (bottom, right) else (0, 0)


def convolution(workload: ConvWorkload) -> Callable[..., Any]:
    """Return the workload as a function of tensors, as one would write it in PyTorch."""
    import torch

    padding = own_padding(workload)

    def forward(x: Any, w: Any, **others: Any) -> Any:
        y = torch.nn.functional.conv2d(x, w, None, workload.stride, padding, workload.dilation, workload.groups)
        return epilogue(workload, y, **others)

    return forward


def epilogue(workload: ConvWorkload, y: Any, scale: Any = None, shift: Any = None, residual: Any = None) -> Any:
    """Apply the workload's epilogue to y (N, K, H, W), one operation after the other."""
    low, high = workload.epilogue.low, workload.epilogue.high
    if scale is not None:
        y = y * scale
    if shift is not None:
        y = y + shift
    if residual is not None:
        y = y + residual
    if (low, high) == (0.0, None):
        return y.relu()
    if (row := workload.epilogue.row).definition is not clip:
        import torch

        return getattr(torch.nn.functional, row.torch)(y, *workload.epilogue.parameters, **row.options)
    return y if (low, high) == (None, None) else y.clamp(low, high)
