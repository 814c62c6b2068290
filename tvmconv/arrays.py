"""Arrays in and out of kernels: NumPy, torch, and whatever speaks DLPack, without copying where that is possible."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .errors import InvalidArgumentError


@dataclass(frozen=True)
class Operand:
    """An array that a kernel can be called with."""

    name: str
    argument: Any
    """What to pass: a torch tensor as it is, so that its current stream is used, else a view through DLPack."""
    shape: tuple[int, ...]
    dtype: str
    device: tvm.runtime.Device

    def check(self, shape: tuple[int, ...], dtype: str, device: tvm.runtime.Device) -> None:
        """Raises `InvalidArgumentError` unless the array is exactly this."""
        if self.shape != shape:
            raise InvalidArgumentError(self.name, self.shape, f"the shape {shape}")
        if self.dtype != dtype:
            raise InvalidArgumentError(self.name, self.dtype, f"the dtype {dtype}")
        if self.device != device:
            raise InvalidArgumentError(self.name, str(self.device), f"an array on {device}")


def operand(name: str, array: Any, alignment: int = 1) -> Operand:
    """The array as an operand; copied only if it is not contiguous, read-only, or not aligned to `alignment` bytes."""
    if isinstance(array, np.ndarray):
        if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
            array = np.array(array, order="C")
    elif is_torch(array):
        if array.requires_grad:
            raise InvalidArgumentError(name, "a tensor that requires grad", "one that does not: pass tensor.detach()")
        array = array.contiguous()
        if array.data_ptr() % alignment:
            array = array.clone()
        device = tvm.cuda(array.device.index) if array.is_cuda else tvm.cpu(0)
        return Operand(name, array, tuple(array.shape), str(array.dtype).removeprefix("torch."), device)
    elif not hasattr(array, "__dlpack__"):
        raise InvalidArgumentError(name, type(array).__name__, "an array: NumPy, torch, or one with __dlpack__")
    try:
        tensor = tvm_ffi.from_dlpack(array, require_alignment=alignment, require_contiguous=True)
    except (ValueError, BufferError, TypeError) as error:
        raise InvalidArgumentError(name, type(array).__name__, f"an array that DLPack can share ({error})") from None
    return Operand(name, tensor, tuple(tensor.shape), str(tensor.dtype), tensor.device)


def empty_like(array: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of the same kind and on the same device as `array`."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=array.device)
    if isinstance(array, np.ndarray):
        return np.empty(shape, dtype)
    return same_kind(array, tvm.runtime.empty(shape, dtype, tvm_ffi.from_dlpack(array).device))


def same_kind(array: Any, tensor: Any) -> Any:
    """A TVM tensor as the kind of array that `array` is, on the device of `array`."""
    if isinstance(array, np.ndarray):
        return tensor.numpy()
    if is_torch(array):
        return sys.modules["torch"].from_dlpack(tensor).to(array.device)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack(tensor)
    return tensor


def is_torch(array: Any) -> bool:
    """Whether the array is a torch tensor; torch is not loaded to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)
