"""Arrays in and out of kernels: NumPy, torch, and whatever speaks DLPack, without copying where that is possible."""

from __future__ import annotations

import sys
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi

from .errors import InvalidArgumentError


class Operand(NamedTuple):
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
            raise InvalidArgumentError(self.name, tuple(self.shape), f"the shape {shape}")
        if self.dtype != dtype:
            raise InvalidArgumentError(self.name, self.dtype, f"the dtype {dtype}")
        if self.device != device:
            raise InvalidArgumentError(self.name, str(self.device), f"an array on {device}")

    def reshaped(self, shape: tuple[int, ...]) -> Operand:
        """The same elements in another shape."""
        if self.shape == shape:
            return self
        argument = self.argument.reshape(shape) if is_torch(self.argument) else self.argument._create_view(shape)
        return self._replace(argument=argument, shape=shape)


CPU_TYPE = tvm.cpu().dlpack_device_type()

GPU_ALIGNMENT = 16
"""Bytes: the widest load and store of a CUDA kernel. On a CPU an element's own alignment is enough."""

HUGE = 2**22
"""Bytes from which on NumPy asks for huge pages, which torch does not: a store to a new small page costs more than the
convolution of what is in it."""


def operand(name: str, array: Any) -> Operand:
    """The array as an operand; copied only if it is not contiguous, read-only, or not aligned as its device needs."""
    if isinstance(array, np.ndarray):
        if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
            array = np.array(array, order="C")
    elif is_torch(array):
        return _torch_operand(name, array)
    elif not hasattr(array, "__dlpack__"):
        raise InvalidArgumentError(name, type(array).__name__, "an array: NumPy, torch, or one with __dlpack__")
    try:
        tensor = tvm_ffi.from_dlpack(array, require_contiguous=True)
        if is_cpu(tensor.device) and not isinstance(array, np.ndarray):
            # Kernels refuse a view that begins at an offset; NumPy adds it to the pointer.
            tensor = tvm_ffi.from_dlpack(np.from_dlpack(tensor))
        dtype = str(tensor.dtype)  # complex numbers have no name in TVM
    except (ValueError, BufferError, TypeError, RuntimeError) as error:
        raise _not_shared(name, array, error) from None
    if not is_cpu(tensor.device) and tensor.data_ptr() % GPU_ALIGNMENT:
        raise InvalidArgumentError(name, "a view that is not aligned", f"an array aligned to {GPU_ALIGNMENT} bytes")
    shape = tuple(tensor.shape)
    if 0 in shape:
        tensor = tvm.runtime.empty(shape, dtype, tensor.device)  # NumPy has strides of 0 there, which kernels refuse
    return Operand(name, tensor, shape, dtype, tensor.device)


def _not_shared(name: str, array: Any, error: Exception) -> InvalidArgumentError:
    """The error for an array that DLPack or TVM refuses; NumPy's are refused for their dtype."""
    if not isinstance(array, np.ndarray):
        return InvalidArgumentError(name, type(array).__name__, f"an array that DLPack can share ({error})")
    swapped = array.dtype.kind in "fiu" and not array.dtype.isnative
    helpful = array.dtype.newbyteorder("=").name if swapped else "float32"
    expected = f"an array that DLPack can share, such as {name}.astype('{helpful}') ({error})"
    return InvalidArgumentError(name, f"{type(array).__name__} of {array.dtype}", expected)


def _torch_operand(name: str, array: Any) -> Operand:
    kind, index = array.device.type, array.device.index
    if array.layout is not sys.modules["torch"].strided or kind not in ("cpu", "cuda"):
        raise InvalidArgumentError(name, f"{array.layout} on {array.device}", "a dense tensor on a CPU or a GPU")
    if array.requires_grad:
        raise InvalidArgumentError(name, "a tensor that requires grad", "one that does not: pass tensor.detach()")
    if array.is_neg() or not array.is_contiguous():
        array = array.resolve_neg().contiguous()
    try:
        pointer = array.data_ptr()
    except RuntimeError:  # torch.vmap's
        pointer = 0
    if not array.numel():  # which has strides that kernels refuse
        shape, dtype, device = tuple(array.shape), _dtype_name(array.dtype), _device(kind, index or 0)
        return Operand(name, tvm.runtime.empty(shape, dtype, device), shape, dtype, device)
    if not pointer:
        raise InvalidArgumentError(name, "a tensor without data", "one with data: no fake one, none of torch.vmap")
    if kind == "cuda" and pointer % GPU_ALIGNMENT:
        array = array.clone()
    return Operand(name, array, array.shape, _dtype_name(array.dtype), _device(kind, index or 0))


@cache
def _dtype_name(dtype: Any) -> str:
    """TVM's name of torch's dtype."""
    return str(dtype).removeprefix("torch.")


@cache
def _device(kind: str, index: int) -> tvm.runtime.Device:
    return tvm.runtime.device(kind, index)


def empty_like(array: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array on the device of `array` that a kernel can write to; `same_kind` makes the result of it."""
    if is_torch(array):
        torch = sys.modules["torch"]
        if array.device.type == "cpu" and prod(shape) * np.dtype(dtype).itemsize >= HUGE:
            return torch.from_numpy(np.empty(shape, dtype))
        return torch.empty(shape, dtype=getattr(torch, dtype), device=array.device)
    if isinstance(array, np.ndarray):
        return np.empty(shape, dtype)
    return tvm.runtime.empty(shape, dtype, tvm_ffi.from_dlpack(array).device)


def same_kind(array: Any, tensor: Any) -> Any:
    """A result as the kind of array that `array` is, on the device of `array`."""
    if isinstance(tensor, np.ndarray) or is_torch(tensor):
        return tensor
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


def is_in_capture(array: Any) -> bool:
    """Whether torch captures what is launched for the array now in a CUDA graph, instead of running it."""
    return is_torch(array) and array.is_cuda and bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def is_cpu(device: tvm.runtime.Device) -> bool:
    """Whether the device is a CPU."""
    return bool(device.dlpack_device_type() == CPU_TYPE)
