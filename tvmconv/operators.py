"""Convolutions as functions on arrays, and as compiled operators that can be kept."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from os import PathLike
from typing import Any

import msgspec
import tvm
from tvm.runtime import Executable, Module

from . import cuda, storage
from .arrays import empty_like, is_torch, operand
from .dispatch import Selection, select, template_for
from .errors import InvalidArgumentError
from .lowering import build, lower, required_alignment
from .targets import cuda_arch, device_of, resolve_target
from .workload import Activation, ConvWorkload, Padding

KERNEL_NAME = "tvmconv_kernel"


class Operator:
    """A convolution compiled for one workload and one target; `tvmconv.compile` makes it.

    Call it with the arrays of `workload.operands` but the last, the output, which it returns: x (N, C, H, W),
    w (C, M, R, S), and the vectors (K,) in float32 that the epilogue has.
    """

    def __init__(
        self, workload: ConvWorkload, target: tvm.target.Target, selection: Selection, module: Executable | Module
    ) -> None:
        self.workload = workload
        self.target = target
        self.selection = selection
        self._kernel = module[KERNEL_NAME]
        self._alignment = required_alignment(workload, target)

    def __call__(self, x: Any, w: Any, scale: Any = None, shift: Any = None) -> Any:
        """The convolution of x and w, as an array of the kind of x on the device of x.

        Raises `InvalidArgumentError` for an array that is not what the workload says, `NoDeviceError` where the
        target's device is missing.
        """
        *names, _ = self.workload.operands
        given = {"x": x, "w": w, "scale": scale, "shift": shift}
        for name, array in given.items():
            if (array is None) == (name in names):
                expected = "an array, as the workload's epilogue has it" if array is None else "None"
                raise InvalidArgumentError(name, None if array is None else type(array).__name__, expected)
        operands = [operand(name, given[name], self._alignment) for name in names]
        kind, index = device_of(self.target).dlpack_device_type(), operands[0].device.index
        for item in operands:
            item.check(*self.workload.operands[item.name], tvm.runtime.device(kind, index))
        output = empty_like(x, *self.workload.operands["output"])
        self._kernel(*(item.argument for item in operands), operand("output", output).argument)
        return output

    def source(self, kind: str = "source") -> str:
        """The kernel as text.

        `kind` is "tvmscript" (the scheduled function), "source" (CUDA C++, or LLVM IR for a CPU), or what a compiler
        makes of that: "ptx" for CUDA, "asm" for a CPU.
        """
        on_cpu = self.target.kind.name == "llvm"
        kinds = ("tvmscript", "source", "asm" if on_cpu else "ptx")
        if kind not in kinds:
            raise InvalidArgumentError("kind", kind, f"one of {', '.join(kinds)} for the target {self.target.kind.name}")
        if kind == "tvmscript":
            return str(lower(self.workload, self.selection, self.target, KERNEL_NAME).script())
        module = _build(self.workload, self.selection, self.target).mod
        if on_cpu:
            return str(module.inspect_source("asm" if kind == "asm" else "ll"))
        source = str(module.imports[0].inspect_source())
        return cuda.to_ptx(source, cuda_arch(self.target)) if kind == "ptx" else source

    def resources(self) -> tuple[cuda.KernelResources, ...]:
        """Registers, shared memory and spills of the kernel, as the CUDA compiler reports them; empty for a CPU."""
        if self.target.kind.name == "llvm":
            return ()
        return cuda.compile_source(self.source(), cuda_arch(self.target)).kernels

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the operator to one file that `tvmconv.load` reads; needs a C++ compiler to link it."""
        metadata = {
            "workload": msgspec.to_builtins(self.workload),
            "target": str(self.target),
            "config": msgspec.to_builtins(self.selection.config),
            "reason": self.selection.reason,
        }
        storage.save(_build(self.workload, self.selection, self.target), "operator", metadata, path)

    @classmethod
    def from_saved(cls, module: Module, metadata: dict[str, Any]) -> Operator:
        """The operator that `save` wrote."""
        workload = msgspec.convert(metadata["workload"], ConvWorkload)
        target = resolve_target(metadata["target"])
        template = template_for(workload, target)
        config = msgspec.convert(metadata["config"], template.Config)
        return cls(workload, target, Selection(template, config, metadata["reason"]), module)

    def __repr__(self) -> str:
        return f"<tvmconv.Operator {self.workload} for {self.target.kind.name} by {self.selection.name}>"


def compile(workload: ConvWorkload, target: Any = "llvm", config: Any = None) -> Operator:  # noqa: A001
    """The operator for a workload on a target (anything that `resolve_target` takes).

    `config` is a configuration of the schedule, checked against its constraints; without one, `dispatch.select` chooses.
    Building for "cuda" needs no GPU, running does.
    """
    resolved = resolve_target(target)
    selection = select(workload, resolved, config)
    return Operator(workload, resolved, selection, _build(workload, selection, resolved))


def depthwise(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: Padding = "SAME",
    dilation: int | Sequence[int] = 1,
    scale: Any = None,
    shift: Any = None,
    activation: Activation = None,
    target: Any = None,
) -> Any:
    """Depthwise convolution of x (N, C, H, W) with w (C, M, R, S), as `activation(y * scale + shift)`: (N, C*M, Ho, Wo).

    x and w are both float32 or both float16, summed in float32, and may be NumPy arrays, torch tensors (on a GPU: on
    the current stream) or any arrays with DLPack; the result is of the same kind on the same device. scale and shift
    are vectors (C*M,) in float32 or in the dtype of x. For padding, dilation and activation see
    `ConvWorkload.depthwise`. `target` is the device of x unless it is given. Kernels are compiled on first use and
    kept. It has no gradient.

    >>> import numpy as np, tvmconv
    >>> x = np.random.rand(1, 32, 112, 112).astype("float32")
    >>> w = np.random.rand(32, 1, 3, 3).astype("float32")
    >>> tvmconv.depthwise(x, w, stride=2, activation="relu").shape
    (1, 32, 56, 56)
    """
    image, weight = operand("x", x), operand("w", w)
    weight.check(weight.shape, image.dtype, image.device)
    workload = ConvWorkload.depthwise(
        image.shape,
        weight.shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        dtype=image.dtype,
        scale=scale is not None,
        shift=shift is not None,
        activation=activation,
    )
    if target is None:
        target = "llvm" if image.device.dlpack_device_type() == tvm.cpu().dlpack_device_type() else "cuda"
    run = _kept(workload, target)
    return run(x, w, _in_float32("scale", scale, image.dtype), _in_float32("shift", shift, image.dtype))


_operators: dict[tuple[ConvWorkload, str], Operator] = {}
_lock = threading.Lock()


def _kept(workload: ConvWorkload, target: Any) -> Operator:
    """The operator for a workload, compiled the first time that it is asked for."""
    key = workload, str(target)
    if key not in _operators:
        with _lock:
            if key not in _operators:
                _operators[key] = compile(workload, target)
    return _operators[key]


def _build(workload: ConvWorkload, selection: Selection, target: tvm.target.Target) -> Executable:
    return build(tvm.IRModule({KERNEL_NAME: lower(workload, selection, target, KERNEL_NAME)}), target)


def _in_float32(name: str, vector: Any, dtype: str) -> Any:
    """A vector of the epilogue, widened if it came in the dtype of x; anything else is left to fail its check."""
    if vector is None or operand(name, vector).dtype != dtype or dtype == "float32":
        return vector
    return vector.float() if is_torch(vector) else vector.astype("float32")
