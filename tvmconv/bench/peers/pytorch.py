"""Peers that run PyTorch: cuDNN and PyTorch's kernels on a GPU, oneDNN on a CPU; eager, and by `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from shutil import which
from typing import TYPE_CHECKING, Any

from tvmconv.problem.activations import clip
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from .peer import Function, Operands, not_installed

if TYPE_CHECKING:
    import tvm

TEN_BITS = 2.0**-10
"""The relative rounding error of float16 and TF32, if a conversion cuts bits off."""

FLOAT32_ON_GPU = "for float32 on a GPU"
"""The obstacle for peers that compute float32 as TF32 or float16 in a GPU's tensor cores."""


@dataclass(frozen=True)
class PyTorch(Function):
    """Eager PyTorch, with cuDNN's search for the fastest algorithm: an epilogue comes operation by operation."""

    name: str = "pytorch"
    channels_last: bool = False
    tf32: bool = False
    half: bool = False

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        narrow = self.tf32 or self.half
        return FLOAT32_ON_GPU if narrow and not (backend_of(target).on_gpu and workload.dtype == "float32") else None

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        strict_and_fastest()
        forward = convolution(workload)
        return with_tf32(forward) if self.tf32 else forward

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        import torch

        dtype = torch.float16 if self.half else operands["x"].dtype
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return {
            name: tensor.to(dtype, memory_format=layout) if tensor.dim() == 4 else tensor.to(dtype)
            for name, tensor in padded(workload, operands).items()
        }

    def unit(self, workload: ConvWorkload) -> float:
        return TEN_BITS if self.tf32 or self.half else super().unit(workload)


@dataclass(frozen=True)
class Compiled(PyTorch):
    """`torch.compile` of the convolution and its epilogue together.

    On a GPU it may try its own kernels for dense convolutions. For grouped ones it has none worth the minutes: on an
    H100 the best of them took 70 times as long as cuDNN's for 256 channels of 21x21.
    """

    name: str = "torch-compile"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return compiler_obstacle(target)

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        strict_and_fastest()
        mode = "max-autotune-no-cudagraphs" if backend_of(target).on_gpu and workload.groups == 1 else None
        return compiled(convolution(workload), mode)


def strict_and_fastest() -> None:
    """Let cuDNN search for the fastest algorithm, in strict float32."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False


def with_tf32(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another while cuDNN and cuBLAS may compute in TF32."""
    import torch

    def call(*tensors: Any, **operands: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
                return forward(*tensors, **operands)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return call


def compiler_obstacle(target: tvm.target.Target) -> str | None:
    """Return the reason why `torch.compile` cannot compile for a target; None where it can."""
    missing = not_installed("triton") if backend_of(target).on_gpu else None
    return missing or (None if which("g++") or which("clang++") else "it needs a C++ compiler")


def compiled(function: Callable[..., Any], mode: str | None) -> Callable[..., Any]:
    """Return a function of tensors, or a module, as `torch.compile` compiles it when it is called first."""
    import torch

    torch._dynamo.reset()  # after some shapes it would leave the function as it is
    compiled: Callable[..., Any] = torch.compile(function, mode=mode)
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
