"""Arrays in and out of kernels: NumPy, torch, and any library with DLPack, without copying where that is possible."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi

from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import BACKENDS, GPU_ALIGNMENT

from .pool import LARGE, LEAST_BYTES


class NoDataError(InvalidArgumentError):
    """A tensor of torch has no data: it is fake, of the device "meta", or made by `torch.vmap` or `torch.fx`."""

    def __init__(self, name: str, array: Any) -> None:
        expected = "a tensor with data, neither a fake one nor one inside torch.vmap"
        super().__init__(name, f"a {type(array).__name__} without data", expected)


class Operand(NamedTuple):
    """An array that a kernel can be called with."""

    name: str
    argument: Any
    """The argument to pass: a torch tensor as it is, so that its current stream is used, else a view through DLPack."""
    shape: tuple[int, ...]
    dtype: str
    device: tvm.runtime.Device

    def check(self, shape: tuple[int, ...], dtype: str, device: tvm.runtime.Device) -> None:
        """Raise `InvalidArgumentError` unless the array is exactly this."""
        if self.shape != shape:
            raise InvalidArgumentError(self.name, tuple(self.shape), f"the shape {shape}")
        if self.dtype != dtype:
            raise InvalidArgumentError(self.name, self.dtype, f"the dtype {dtype}")
        if self.device != device:
            raise InvalidArgumentError(self.name, str(self.device), f"an array on {device}")

    @property
    def needs_channels_last(self) -> bool:
        """True for an array of four axes that has to be copied to lie in memory as torch's channels_last does."""
        if len(self.shape) != 4 or self.is_channels_last:
            return False
        return self.shape[1] > 1 and self.shape[2:] != (1, 1)

    @property
    def is_channels_last(self) -> bool:
        """True for a tensor of torch in channels_last, unless it is contiguous too, as one of a single channel is."""
        return is_torch(self.argument) and not self.argument.is_contiguous()


CPU_TYPE = tvm.cpu().dlpack_device_type()
BFLOAT16 = STORAGE_TYPES["bfloat16"].numpy

DEVICE_TYPES = frozenset(backend.device_type for backend in BACKENDS.values())
"""torch's names of the devices for which there are kernels."""


def operand(name: str, array: Any) -> Operand:
    """Return the array as an operand; copied only if it is not contiguous, read-only, or not aligned for its device."""
    argument, _ = ARGUMENT_FUNCTIONS[type(array)](name, array)
    return described(name, array, contiguous(argument))


def described(name: str, array: Any, argument: Any) -> Operand:
    """Return the operand for the argument that `ARGUMENT_FUNCTIONS` gave for an array."""
    if is_torch(argument):
        _require_dense(name, argument)
        device = _device(argument.device.type, argument.device.index or 0)
        return Operand(name, argument, argument.shape, _dtype_name(argument.dtype), device)
    try:
        shape, dtype = tuple(argument.shape), str(argument.dtype)
    except ValueError as error:  # complex numbers have no name in TVM
        raise _not_shared(name, array, error) from None
    if 0 in shape:
        argument = tvm.runtime.empty(shape, dtype, argument.device)  # NumPy has strides of 0, which kernels refuse
    return Operand(name, argument, shape, dtype, argument.device)


Taker = Callable[[str, Any], tuple[Any, Hashable]]


def _stands_for_others(kind: type) -> bool:
    """Return whether a class of torch's tensors has other operators than torch's, as that of fake tensors does."""
    return getattr(kind, "__torch_dispatch__", None) is not sys.modules["torch"].Tensor.__torch_dispatch__


def _refused(name: str, array: Any) -> tuple[Any, Hashable]:
    raise NoDataError(name, array)


class _ArgumentFunctions(dict[type, Taker]):
    def __missing__(self, kind: type) -> Taker:
        torch = sys.modules.get("torch")
        if issubclass(kind, np.ndarray):
            self[kind] = _argument_of_numpy
        elif torch is not None and issubclass(kind, torch.Tensor) and not _stands_for_others(kind):
            self[kind] = _argument_of_torch
        elif torch is not None and hasattr(kind, "__torch_function__"):
            self[kind] = _refused
        else:
            self[kind] = _argument_by_dlpack
        return self[kind]


ARGUMENT_FUNCTIONS = _ArgumentFunctions()
"""The functions, by the type of arrays, that return an array's argument and a key.

The argument is what is passed to a kernel, a tensor of torch in channels_last as it is; arrays for which the same call
works have equal keys. The functions look only at what may differ between such arrays, since they run in every call;
`described` returns the rest.
"""


def argument_to_write(name: str, array: Any) -> tuple[Any, Hashable]:
    """Return argument and key for an array that a kernel writes to; raise `InvalidArgumentError` rather than copy.

    A tensor of torch is passed as it is, any other array as another object. `require_order` follows where the key is
    new.
    """
    take = ARGUMENT_FUNCTIONS[type(array)]
    if take is _argument_of_numpy and not array.flags.carray:
        flags = array.flags
        what = "not contiguous" if not flags.c_contiguous else "not aligned" if not flags.aligned else "read-only"
        raise InvalidArgumentError(name, f"an array that is {what}", "one in C order, aligned and writable")
    if take is _argument_by_dlpack and not isinstance(array, tvm_ffi.Tensor):
        raise InvalidArgumentError(name, type(array).__name__, "an array of NumPy, a tensor of torch or one of TVM")
    argument, facts = take(name, array)
    if take is _argument_of_torch and argument is not array and (array.numel() or not array.is_contiguous()):
        raise _not_in_order(name, array, "contiguous")
    return argument, facts


def require_order(out: Operand, channels_last: bool) -> None:
    """Raise `InvalidArgumentError` unless an operand of `argument_to_write` is in channels_last, or else contiguous."""
    if not channels_last:
        if out.is_channels_last:
            raise _not_in_order(out.name, out.argument, "contiguous")
    elif not is_torch(out.argument):
        raise InvalidArgumentError(out.name, "no tensor of torch", "a tensor of torch in channels_last, as x is")
    elif not out.argument.is_contiguous(memory_format=sys.modules["torch"].channels_last):
        raise _not_in_order(out.name, out.argument, "in channels_last, as x is")


def _not_in_order(name: str, tensor: Any, order: str) -> InvalidArgumentError:
    expected = f"one that is {order}, and on a GPU aligned to {GPU_ALIGNMENT} bytes"
    return InvalidArgumentError(name, f"a tensor with strides {tensor.stride()}", expected)


def _argument_of_numpy(name: str, array: Any) -> tuple[Any, Hashable]:
    facts = name, array.shape, array.dtype
    if not array.flags.carray:  # contiguous, aligned and writable
        array = np.array(array, order="C")
    try:
        return from_numpy(array), facts
    except (ValueError, BufferError, TypeError, RuntimeError) as error:
        raise _not_shared(name, array, error) from None


def _argument_of_torch(name: str, array: Any) -> tuple[Any, Hashable]:
    if array.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise wanting_gradients(name)
    try:
        pointer = array.data_ptr()
    except RuntimeError:  # torch.vmap's, and sparse ones
        pointer = 0
    facts = (name, array.shape, array.dtype) if array.is_cpu else (name, array.shape, array.dtype, array.device)
    if not pointer or not array.numel():
        return _empty(name, array), facts
    if array.is_neg():
        array = array.resolve_neg()
    elif pointer % GPU_ALIGNMENT and array.is_cuda:
        array = array.clone()
    if not array.is_contiguous():
        if array.is_contiguous(memory_format=sys.modules["torch"].channels_last):
            return array, (*facts, "channels_last")
        array = array.contiguous()
    return array, facts


def wanting_gradients(name: str) -> InvalidArgumentError:
    """Return the error for a tensor of torch that requires gradients."""
    expected = "one without: pass tensor.detach(), or call under torch.no_grad(); tvmconv.nn has gradients"
    return InvalidArgumentError(name, "a tensor that requires grad", expected)


def _empty(name: str, array: Any) -> Any:
    """Return a contiguous tensor like one of torch without elements, whose strides kernels might refuse."""
    if array.is_meta:
        raise NoDataError(name, array)
    _require_dense(name, array)
    if array.numel():
        raise NoDataError(name, array)
    device = _device(array.device.type, array.device.index or 0)
    return tvm.runtime.empty(tuple(array.shape), _dtype_name(array.dtype), device)


def _require_dense(name: str, array: Any) -> None:
    if array.layout is not sys.modules["torch"].strided or array.device.type not in DEVICE_TYPES:
        raise InvalidArgumentError(name, f"{array.layout} on {array.device}", "a dense tensor on a CPU or a GPU")


def _argument_by_dlpack(name: str, array: Any) -> tuple[Any, Hashable]:
    if not hasattr(array, "__dlpack__"):
        raise InvalidArgumentError(name, type(array).__name__, "an array: NumPy, torch, or one with __dlpack__")
    try:
        tensor = tvm_ffi.from_dlpack(array, require_contiguous=True)
        on_cpu = is_cpu(tensor.device)
        if on_cpu:
            # Kernels refuse a view that begins at an offset; NumPy adds it to the pointer.
            tensor = from_numpy(to_numpy(tensor))
        facts = name, tensor.shape, tensor.dtype, tensor.device
    except (ValueError, BufferError, TypeError, RuntimeError) as error:
        raise _not_shared(name, array, error) from None
    if not on_cpu and tensor.data_ptr() % GPU_ALIGNMENT:
        raise InvalidArgumentError(name, "a view that is not aligned", f"an array aligned to {GPU_ALIGNMENT} bytes")
    return tensor, facts


def _not_shared(name: str, array: Any, error: Exception) -> InvalidArgumentError:
    """Return the error for an array that DLPack or TVM refuses; NumPy's are refused for their dtype."""
    if not isinstance(array, np.ndarray):
        return InvalidArgumentError(name, type(array).__name__, f"an array that DLPack can share ({error})")
    swapped = array.dtype.kind in "fiu" and not array.dtype.isnative
    helpful = array.dtype.newbyteorder("=").name if swapped else "float32"
    expected = f"an array that DLPack can share, such as {name}.astype('{helpful}') ({error})"
    return InvalidArgumentError(name, f"{type(array).__name__} of {array.dtype}", expected)


@cache
def _dtype_name(dtype: Any) -> str:
    """Return TVM's name of torch's dtype."""
    return str(dtype).removeprefix("torch.")


@cache
def _device(kind: str, index: int) -> tvm.runtime.Device:
    return tvm.runtime.device(kind, index)


def from_numpy(array: np.ndarray) -> tvm.runtime.Tensor:
    """Return TVM's view of an array; bfloat16 is passed as its bits, since DLPack refuses NumPy's bfloat16."""
    if array.dtype == BFLOAT16:
        return tvm_ffi.from_dlpack(array.view(np.uint16))._create_view(array.shape, "bfloat16")
    return tvm_ffi.from_dlpack(array)


def to_numpy(tensor: Any) -> np.ndarray:
    """Return NumPy's view of a tensor of TVM or torch on a CPU, whose elements lie one after the other."""
    if not isinstance(tensor, tvm_ffi.Tensor):
        tensor = tvm_ffi.from_dlpack(tensor)
    if tensor.dtype == "bfloat16":
        return np.from_dlpack(tensor._create_view(tensor.shape, "uint16")).view(BFLOAT16)
    return np.from_dlpack(tensor)


def to_torch(array: np.ndarray) -> Any:
    """Return torch's view of an array; torch has to be loaded."""
    return sys.modules["torch"].from_dlpack(from_numpy(array))


def contiguous(argument: Any) -> Any:
    """Return an argument of `ARGUMENT_FUNCTIONS` with its elements in order: a copy of a tensor in channels_last."""
    return argument.contiguous() if is_torch(argument) else argument


def in_channels_last(argument: Any) -> Any:
    """Return an argument (N, C, H, W) as a tensor of torch in channels_last, a copy unless it lies so in memory."""
    torch = sys.modules["torch"]
    tensor = argument if is_torch(argument) else torch.from_dlpack(argument)
    return tensor.contiguous(memory_format=torch.channels_last)


def reshaped(argument: Any, shape: tuple[int, ...]) -> Any:
    """Return an argument of `ARGUMENT_FUNCTIONS` in another shape."""
    return argument.reshape(shape) if is_torch(argument) else argument._create_view(shape)


def in_float32(argument: Any) -> Any:
    """Return an argument of `ARGUMENT_FUNCTIONS` in float32; an array that TVM has on a GPU is returned as it is."""
    if is_torch(argument):
        return argument.float()
    return from_numpy(to_numpy(argument).astype("float32")) if is_cpu(argument.device) else argument


def allocator(array: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
    """Return a function that makes new arrays on the device of `array` for a kernel to write to.

    `same_kind` makes a result of such an array.
    """
    itemsize = np.dtype(dtype).itemsize
    is_large = prod(shape) * itemsize >= LEAST_BYTES
    if is_torch(array):
        torch = sys.modules["torch"]
        if array.is_cpu and is_large:
            bits, kind = f"int{8 * itemsize}", getattr(torch, dtype)
            return lambda: torch.from_numpy(LARGE.empty(shape, bits)).view(kind)  # torch refuses NumPy's bfloat16
        # Sizes one by one are read faster than a tuple of them.
        return partial(torch.empty, *shape, dtype=getattr(torch, dtype), device=array.device)
    if isinstance(array, np.ndarray):
        return partial(LARGE.empty if is_large else np.empty, shape, np.dtype(dtype))
    return partial(tvm.runtime.empty, shape, dtype, tvm_ffi.from_dlpack(array).device)


def channels_last_allocator(tensor: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
    """Return a function that makes new tensors of torch in channels_last on the device of `tensor`."""
    torch = sys.modules["torch"]
    kind = getattr(torch, dtype)
    return partial(torch.empty, *shape, dtype=kind, device=tensor.device, memory_format=torch.channels_last)


def argument_maker(array: Any, dtype: str) -> Callable[[Any], Any] | None:
    """Return the function that makes a kernel's argument of an allocated array; None where that is the argument."""
    return from_numpy if isinstance(array, np.ndarray) and dtype == "bfloat16" else None


def result_type(array: Any) -> type | None:
    """Return the type of arrays that an allocator makes if they are results without `same_kind`, else None."""
    if isinstance(array, np.ndarray):
        return np.ndarray
    return sys.modules["torch"].Tensor if is_torch(array) else None


def same_kind(array: Any, tensor: tvm.runtime.Tensor) -> Any:
    """Return a tensor of TVM as the kind of array that `array` is, on the device of `array`."""
    if isinstance(array, np.ndarray):
        return to_numpy(tensor) if is_cpu(tensor.device) else tensor.numpy()
    if is_torch(array):
        return sys.modules["torch"].from_dlpack(tensor).to(array.device)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack(tensor)
    return tensor


def is_torch(array: Any) -> bool:
    """Return whether the array is a torch tensor; torch is not loaded to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_in_capture(array: Any) -> bool:
    """Return whether torch captures launches for the array now in a CUDA graph, instead of running them."""
    return is_torch(array) and array.is_cuda and bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def is_cpu(device: tvm.runtime.Device) -> bool:
    """Return whether the device is a CPU."""
    return bool(device.dlpack_device_type() == CPU_TYPE)


def stream_of(array: Any) -> int | None:
    """Return the handle of the stream in which torch computes now on an array's GPU; None for any other array."""
    if not is_torch(array) or not array.is_cuda:
        return None
    return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
