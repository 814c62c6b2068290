"""A built network: call it with arrays, list the kernels of its convolutions, write it to a file."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cached_property
from os import PathLike
from typing import Any

import msgspec
import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import require_positive
from tvmconv.problem.precision import DEFAULT
from tvmconv.runtime import arrays, storage
from tvmconv.runtime.calls import MAX_CACHED_CALLS
from tvmconv.runtime.profiling import Profile, profile_of
from tvmconv.support.cache import Cache
from tvmconv.targets import device_for

from ..graph.branch_errors import UnfitBranch
from ..graph.layers import Layer, TensorSpec
from ..graph.sizes import Condition, Conditions, OpenSize, require_sizes
from ..indices.errors import require_in_range
from .session import POOLED, Session
from .streams import in_turn

ALIGNMENT = 64
"""The alignment in bytes that TVM's own kernels expect of every tensor; they crash without it.

Kernels of a CPU that read inputs expect the alignment of an element only, except in files from before `Network` knew of
it.
"""


class Network:
    """A model compiled for one target; `tvmconv.build` makes it, `tvmconv.load` reads one from a file.

    A process with TVM's runtime alone, without its compiler, can run it. `target` is JSON.

    >>> import numpy as np
    >>> import torch
    >>> import tvmconv
    >>> module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> network = tvmconv.build(tvmconv.import_model(module, (torch.zeros(1, 3, 16, 16),)), "llvm")
    >>> [layer.kernel for layer in network.layers]
    ['tvmconv cpu/direct']
    >>> network(np.ones((1, 3, 16, 16), "float32")).shape
    (1, 8, 14, 14)
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable | tvm.runtime.Module,
        target: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        layers: tuple[Layer, ...],
        constants: tuple[int, ...],
        open_sizes: tuple[OpenSize, ...] = (),
        conditions: tuple[Condition, ...] = (),
        precision: str = DEFAULT,
        checks: tuple[str, ...] = (),
        alignment: int = 1,
    ) -> None:
        """Take the parts of a built network; `constants` are the positions of outputs that no input changes.

        With `checks`, the texts of the checks of indices, the executable has one more output for `require_in_range`.
        Inputs that are not aligned to `alignment` bytes are copied.
        """
        self.target_json = target
        """The target that the network was built for, as JSON."""
        self.inputs = inputs
        self.outputs = outputs
        self.layers = layers
        self.open_sizes = open_sizes
        """The named sizes of the inputs that are known only in a call, each with its bounds."""
        self.precision = precision
        """The precision of kernels with float32 operands, one of `tvmconv.problem.precision.WORDS`."""
        self._conditions = Conditions(conditions)
        self._executable = executable
        self._content: storage.Content | None = None
        self._constants = constants
        self._checks = checks
        self._alignment = alignment
        self._accepted: Cache[Any, bool] = Cache(MAX_CACHED_CALLS)
        self._turn = threading.Lock()

    def __call__(self, /, *given: Any, **named: Any) -> Any:
        """Run the network on its inputs, in order or by name: arrays of NumPy or torch, or any with DLPack.

        The result is an array of the same kind and on the same device as the first input, of NumPy where there is
        none, or a tuple of them where the model has several outputs. It shares its memory with nothing. Arrays that
        are elsewhere are copied to the target's device. Raises `InvalidArgumentError` for inputs that are not those of
        `inputs` or that have indices out of range, `NoDeviceError` where the device is missing. On a GPU, indices in
        tensors of torch are not compared, since a call does not wait for the GPU: they are brought into range.

        Threads take turns, as TVM's virtual machine confuses calls that are under way together. On a GPU it runs in
        torch's current stream where an input is torch's, and waits there for the last network that was called in
        another stream, since they share memory. A call that torch captures in a CUDA graph has its launches in that;
        docs/networks.md says which networks refuse.
        """
        inputs, operands = self._operands_on_device(given, named)
        in_capture = any(map(arrays.is_in_capture, inputs))
        try:
            with self._turn, self._in_turn(operands, in_capture):
                result = (self._session.run_in_capture if in_capture else self._session.run)(operands)
        except UnfitBranch as error:
            raise self._error_of_sizes(error, operands) from None
        several = len(self.outputs) + bool(self._checks) > 1
        tensors = [_as_tensor(item) for item in (result if several else [result])]
        if self._checks:
            self._require_in_range(tensors.pop(), inputs, operands)
        outputs = tuple(self._for_caller(inputs, operands, tensors))
        return outputs if len(outputs) > 1 else outputs[0]

    def profile(self, /, *given: Any, repeat: int = 10, **named: Any) -> Profile:
        """Return the time that each kernel takes in a call with these inputs, the median of `repeat` runs.

        The inputs are as for a call, whose kernels run in the same memory; the work of the virtual machine itself,
        copies of inputs and outputs included, is left out. On a GPU a kernel's time lasts until the device is done with
        it, its launch included, which takes some microseconds: in a call, launches overlap with kernels and go in CUDA
        graphs. Layers that share a kernel are told apart by their order.

        Raises what a call raises, and `InvalidArgumentError` for a `repeat` below 1.
        """
        require_positive("repeat", repeat)
        _, operands = self._operands_on_device(given, named)
        try:
            with self._turn, self._in_turn(operands, False):
                runs = self._session.timed(operands, repeat)
        except UnfitBranch as error:
            raise self._error_of_sizes(error, operands) from None
        layers: dict[str, list[tuple[str, str]]] = {}
        for layer in self.layers:
            if layer.function is not None:
                layers.setdefault(layer.function, []).append((layer.convolution.name, layer.kernel))
        return profile_of(runs, layers)

    def _operands_on_device(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return the inputs of a call in order, which are checked, and the arrays on the device with their elements.

        What is alike in arrays that are passed to kernels as they are is checked once.
        """
        inputs = self._in_order(given, named)
        pairs = [
            arrays.ARGUMENT_FUNCTIONS[type(array)](spec.name, array)
            for spec, array in zip(self.inputs, inputs, strict=True)
        ]
        arguments, key = (
            [argument for argument, _ in pairs],
            tuple([facts for _, facts in pairs]),
        )
        if self._accepted.get(key):
            return inputs, arguments
        operands = [input_operand(spec, array) for spec, array in zip(self.inputs, inputs, strict=True)]
        require_sizes(self._sizes, self._conditions, self.inputs, [tuple(operand.shape) for operand in operands])
        if self._alignment == 1 and all(self._accepts(*each) for each in zip(operands, arguments, strict=True)):
            self._accepted.put(key, True)
        return inputs, [_on_device(operand, self.device, self._alignment) for operand in operands]

    def _accepts(self, operand: arrays.Operand, argument: Any) -> bool:
        """Return whether arrays like this one are passed to kernels as they are."""
        is_in_order = not arrays.is_torch(argument) or argument.is_contiguous()
        return bool(operand.device == self.device and is_in_order and 0 not in operand.shape)

    def _in_turn(self, operands: Sequence[Any], in_capture: bool) -> AbstractContextManager[None]:
        """Return the context in which kernels are launched: on a GPU, in turn with those of other streams."""
        if self._kind == "llvm":
            return nullcontext()
        streams = [stream for array in operands if (stream := arrays.stream_of(array)) is not None]
        of_torch = bool(streams)
        stream = streams[0] if of_torch else tvm_ffi.get_raw_stream(self.device)
        return in_turn(self.device, stream, of_torch, in_capture)

    def _require_in_range(self, numbers: Any, inputs: Sequence[Any], operands: Sequence[Any]) -> None:
        """Raise `InvalidArgumentError` for indices out of range, unless results stay on a GPU without a wait."""
        if self._kind == "llvm":  # an array of NumPy would take longer than the rest of the check
            found = list((ctypes.c_int64 * len(self._checks)).from_address(numbers.data_ptr()))
        elif inputs and arrays.is_torch(inputs[0]) and inputs[0].is_cuda:
            return
        else:
            found = arrays.same_kind(np.empty(0), numbers).tolist()
        if max(found) >= 0:
            require_in_range(self._checks, found, self._open_sizes_of(operands))

    def _error_of_sizes(self, error: UnfitBranch, operands: Sequence[Any]) -> InvalidArgumentError:
        """Return the error for inputs whose sizes do not fit the branch that they choose."""
        return InvalidArgumentError("sizes", self._open_sizes_of(operands), str(error))

    def _open_sizes_of(self, operands: Sequence[Any]) -> dict[str, int]:
        """Return the values of the open sizes in a call, by their names."""
        return {
            name: int(size)
            for spec, array in zip(self.inputs, operands, strict=True)
            for name, size in zip(spec.shape, array.shape, strict=True)
            if isinstance(name, str)
        }

    def _for_caller(self, inputs: Sequence[Any], operands: Sequence[Any], tensors: Sequence[Any]) -> Iterator[Any]:
        """Yield the results as the caller's kind of arrays, copied where TVM's share memory with others.

        They may share it with inputs, constants and earlier results.
        """
        like, addresses = (inputs[0] if inputs else np.empty(0)), {tensor.data_ptr() for tensor in operands}
        for index, tensor in enumerate(tensors):
            array, address = arrays.same_kind(like, tensor), tensor.data_ptr()
            is_shared = index in self._constants or address in addresses
            addresses.add(address)
            yield _copy(array) if is_shared else array

    def export(self, path: str | PathLike[str]) -> None:
        """Write the network to one file that `tvmconv.load` reads; needs a C++ compiler to link it."""
        if not isinstance(self._executable, tvm.runtime.Executable):
            raise InvalidArgumentError("network", "one that was loaded", "one that was built; copy the file it is in")
        details = {
            "inputs": msgspec.to_builtins(self.inputs),
            "outputs": msgspec.to_builtins(self.outputs),
            "layers": msgspec.to_builtins(self.layers),
            "constants": self._constants,
            "open_sizes": msgspec.to_builtins(self.open_sizes),
            "conditions": msgspec.to_builtins(self._conditions.all),
            "precision": self.precision,
            "checks": self._checks,
            "alignment": self._alignment,
        }
        storage.save(self._executable, "network", self.target_json, details, path)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Let `pickle` and `copy.deepcopy` take the bytes of the file that `export` writes: it needs a C++ compiler.

        One that was loaded has them already. Unpickling runs the code in them.
        """
        content = storage.saved_bytes(self.export) if self._content is None else self._content.read()
        return _from_bytes, (content,)

    @classmethod
    def from_saved(
        cls, module: tvm.runtime.Module, description: storage.Description, content: storage.Content
    ) -> Network:
        """Return the network that `export` wrote to a file with such a description and content."""
        details = description.details
        network = cls(
            module,
            description.target,
            msgspec.convert(details["inputs"], tuple[TensorSpec, ...]),
            msgspec.convert(details["outputs"], tuple[TensorSpec, ...]),
            msgspec.convert(details["layers"], tuple[Layer, ...]),
            msgspec.convert(details["constants"], tuple[int, ...]),
            # None of these is in files from before it.
            msgspec.convert(details.get("open_sizes", []), tuple[OpenSize, ...]),
            msgspec.convert(details.get("conditions", []), tuple[Condition, ...]),
            details.get("precision", DEFAULT),
            tuple(details.get("checks", [])),
            details.get("alignment", ALIGNMENT),
        )
        network._content = content
        return network

    def __repr__(self) -> str:
        ours = sum(layer.kernel != "TVM" for layer in self.layers)
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        kernels = f"{ours} of {len(self.layers)} convolutions by tvmconv"
        return f"<tvmconv.Network {inputs} -> {outputs} for {self._kind}, {kernels}>"

    @property
    def multiplied(self) -> set[str]:
        """The types of the factors in the kernels of convolutions and linear layers, such as "int8".

        With the precision "tf32" those in float32 are "tf32", which factors may be rounded to.
        """
        workloads = (layer.convolution.workload for layer in self.layers if layer.kernel != "TVM")
        types = {workload.dtype for workload in workloads if workload is not None}
        return {"tf32" if (each, self.precision) == ("float32", "tf32") else each for each in types}

    @cached_property
    def target(self) -> tvm.target.Target:
        """The target that the network was built for; needs TVM's compiler."""
        return tvm.target.Target(json.loads(self.target_json))

    @cached_property
    def _sizes(self) -> dict[str, OpenSize]:
        return {size.name: size for size in self.open_sizes}

    @cached_property
    def _kind(self) -> str:
        return str(json.loads(self.target_json)["kind"])

    @cached_property
    def device(self) -> tvm.runtime.Device:
        """The device that the network runs on; `NoDeviceError` where it is missing."""
        return device_for(self.target_json)

    @cached_property
    def _session(self) -> Session:
        # TVM's pool keeps memory by its exact size: a CPU's memory for outputs of one size would serve no other size.
        # A GPU allocates so slowly that it uses the pool nevertheless.
        is_open = any(isinstance(size, str) for spec in self.inputs for size in spec.shape)
        return Session(self._executable, self.device, "naive" if is_open and self._kind == "llvm" else POOLED)

    @property
    def machine(self) -> VirtualMachine:
        """TVM's virtual machine with the network's code; its function "main" takes tensors that are on the device."""
        return self._session.machine

    def release_memory(self) -> None:
        """Give back the memory that the network keeps between calls; the next call allocates it again.

        That is the memory of intermediate tensors, of CUDA graphs and, on a GPU, of the weights. Networks share TVM's
        pools, except those with open sizes on a CPU: all others, in this process, lose the unused memory in the pools,
        and allocate it again in their next call. Graphs that torch has captured keep their memory.
        """
        with self._turn:
            self._session.release()

    def _in_order(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        names = [spec.name for spec in self.inputs[len(given) :]]
        if len(given) + len(named) == len(self.inputs) and all(name in named for name in names):
            return [*given, *(named[name] for name in names)]
        expected = f"{len(self.inputs)} inputs: {', '.join(map(str, self.inputs))}"
        for name in named:
            if name not in names:
                raise InvalidArgumentError("input", name, f"{expected}, each once")
        raise InvalidArgumentError("inputs", f"{len(given) + len(named)} arrays", expected)


def _from_bytes(content: bytes) -> Network:
    """Return the network in the bytes of a file that `Network.export` wrote."""
    return Network.from_saved(*storage.read_bytes(content))


def input_operand(spec: TensorSpec, array: Any) -> arrays.Operand:
    """Return the array as an operand; raise `InvalidArgumentError` unless it fits the spec.

    A size that is left open may not be 0: TVM leaves a sum without terms unwritten.
    """
    operand = arrays.operand(spec.name, array)
    fits = len(operand.shape) == len(spec.shape) and all(
        (actual > 0 if isinstance(size, str) else size == actual)
        for size, actual in zip(spec.shape, operand.shape, strict=True)
    )
    if not fits:
        least = ", open sizes of at least 1" if any(isinstance(size, str) for size in spec.shape) else ""
        raise InvalidArgumentError(spec.name, tuple(operand.shape), f"the shape of {spec}{least}")
    if operand.dtype != spec.dtype:
        raise InvalidArgumentError(spec.name, operand.dtype, f"the dtype of {spec}")
    return operand


def copied(operand: arrays.Operand, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """Return a new tensor on the device with the operand's elements."""
    source = tvm_ffi.from_dlpack(operand.argument)
    return tvm.runtime.empty(operand.shape, operand.dtype, device).copyfrom(source)


def _as_tensor(result: Any) -> Any:
    """Return a result as TVM's: called with a tensor of torch, TVM answers with those of torch."""
    return result if isinstance(result, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(result)


def _copy(array: Any) -> Any:
    return array.copyto(array.device) if isinstance(array, tvm.runtime.Tensor) else deepcopy(array)


def _on_device(operand: arrays.Operand, device: tvm.runtime.Device, alignment: int) -> Any:
    """Return the array on the device and aligned to some bytes, copied only where it has to be.

    Checks are made once for arrays that are alike and that kernels take as they are.
    """
    if operand.device == device and operand.argument.data_ptr() % alignment == 0:
        return operand.argument
    return copied(operand, device)
