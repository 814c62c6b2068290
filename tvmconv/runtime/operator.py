"""A convolution compiled for one workload and one target: called with arrays, shown as text, saved."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from math import prod
from os import PathLike
from typing import Any, Literal

import msgspec
import numpy as np
import tvm
from tvm import tirx
from tvm.runtime import Executable, Module

from tvmconv.dispatch import Selection, registry, select, template_named
from tvmconv.lowering import KERNEL_NAME, MAX_BYTES, MAX_TILES, build_kernel, lower
from tvmconv.lowering.workspace import Workspace, take_out
from tvmconv.problem import FORWARD, OpenAxis, Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import require_positive
from tvmconv.problem.precision import DEFAULT, Word
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of, cross_triple, cuda, cuda_arch, device_of, llvm, resolve_target

from . import storage
from .arrays import Operand
from .calls import Calls, Launch, present
from .profiling import Profile, profile_of, timed_calls

logger = logging.getLogger(__name__)


class Operator:
    """A convolution compiled for one workload and one target; `tvmconv.compile` makes it.

    With open sizes it takes arrays of any such size, not only the workload's.

    Call it with the arrays of `problem.operands` except the last, the output, which it returns: x (N, C, H, W), w
    (`workload.w_shape`), and the epilogue's operands, vectors (K,) in float32 and a residual (N, K, Ho, Wo), in the
    workload's layouts.

    >>> import numpy as np
    >>> import tvmconv
    >>> operator = tvmconv.compile(tvmconv.ConvWorkload.conv2d((1, 8, 6, 6), (4, 8, 3, 3), padding=1), "llvm")
    >>> y = operator(np.ones((1, 8, 6, 6), "float32"), np.ones((4, 8, 3, 3), "float32"))
    >>> float(y[0, 0, 0, 0])  # in the corner: 8 channels of 4 taps
    32.0
    """

    KIND: Literal["operator", "sparse"] = "operator"
    """The kind of file that `save` writes."""

    COMPILED_IN: tuple[str, ...] = ()
    """The operands of the workload that the kernel does not take."""

    def __init__(
        self,
        problem: Problem,
        target: tvm.target.Target,
        selection: Selection,
        module: Executable | Module,
        workspace: Workspace,
    ) -> None:
        self.problem = problem
        self.workload = problem.workload
        self.target = target
        self.selection = selection
        self._content: storage.Content | None = None
        # Code for another kind of CPU can be shown and saved.
        self._kernel = None if cross_triple(str(target)) else llvm.function_of(module, KERNEL_NAME)
        self._workspace = workspace
        self._inputs = [name for name in problem.operands if name not in (*self.COMPILED_IN, "output")]
        self._calls = Calls()

    def __call__(
        self, x: Any, w: Any, scale: Any = None, shift: Any = None, residual: Any = None, *, out: Any = None
    ) -> Any:
        """Convolve x (N, C, H, W) with w (`workload.w_shape`); return an array of the kind of x on the device of x.

        `out` is an array to write to and return instead of a new one: of NumPy, torch or TVM, contiguous, where no
        operand is. Raises `InvalidArgumentError` for an array that is not what the workload says, `NoDeviceError`
        where the target's device is missing.
        """
        return self._calls(self.launch, (), present(x, w, scale, shift, residual), out)

    def launch(self, x: Any, operands: Sequence[Operand]) -> Launch:
        """Return the launch of the kernel for arrays like these, which are checked; x decides the result's kind."""
        names = [item.name for item in operands]
        if names != self._inputs:
            raise InvalidArgumentError("operands", ", ".join(names), f"the workload's: {', '.join(self._inputs)}")
        device = tvm.runtime.device(self._device_type, operands[0].device.index)
        workload = self._workload_of(operands[0])
        specs = self.problem.operands_of(msgspec.structs.replace(self.problem, workload=workload).caller_workload)
        workspace = self._workspace.sized(workload)
        for item in operands:
            item.check(*specs[item.name], device)
        inputs, output = {name: specs[name] for name in names}, specs["output"]
        in_channels_last = self.problem.in_channels_last
        return Launch.prepare(self._kernel, x, operands, inputs, output, workspace, device, in_channels_last)

    def _workload_of(self, x: Operand) -> ConvWorkload:
        """Return the workload with the open sizes of an image; raise `InvalidArgumentError` for what kernels refuse."""
        if not self.problem.open_sizes or len(x.shape) != len(self.problem.operands[x.name][0]):
            return self.workload
        row, column = self.problem.caller_workload.x_layout.spatial
        axes = {"batch": 0, "height": row, "width": column}
        sizes = {name: x.shape[axes[name]] for name in self.problem.open_sizes}
        workload = msgspec.structs.replace(self.workload, **sizes)
        if self.problem.has_open_planes and max(workload.output_size) > MAX_TILES:
            raise InvalidArgumentError("x", x.shape, f"an output of at most {MAX_TILES} rows and columns")
        if not self.takes(workload):
            expected = f"sizes with which no array has over {MAX_BYTES} bytes; without open sizes it may have more"
            raise InvalidArgumentError("x", x.shape, expected)
        return workload

    def takes(self, workload: ConvWorkload) -> bool:
        """Return whether the operator's kernel can compute a workload of other open sizes, which may be too large."""
        if self.problem.has_open_planes and max(workload.output_size) > MAX_TILES:
            return False
        if not self.problem.open_sizes or not backend_of(self.target).limits_open_arrays:
            return True
        arrays = (*self.problem.operands_of(workload).values(), *self._workspace.sized(workload))
        return all(prod(shape) * np.dtype(dtype).itemsize <= MAX_BYTES for shape, dtype in arrays)

    @property
    def workspace_bytes(self) -> int:
        """The bytes of memory that a call takes besides operands and output; with an open batch, for a batch of one.

        On a GPU it is allocated as the output is: for a torch tensor by torch, on the current stream. On a CPU TVM
        allocates it and keeps it for the thread's next calls; memory that threads take for single tasks comes on top.
        """
        return self._workspace.nbytes

    @cached_property
    def _device_type(self) -> int:
        return int(device_of(self.target).dlpack_device_type())

    def profile(self, *arrays: Any, repeat: int = 10, **named: Any) -> Profile:
        """Return the time of a call with these arrays, the median of `repeat` runs, as a profile of one row.

        The arrays are those of a call, in order or by name. The time is that of the kernel with its launch and the
        allocation of its output.
        """
        require_positive("repeat", repeat)
        sync = tvm.runtime.device(self._device_type, 0).sync
        runs = timed_calls(lambda: self(*arrays, **named), sync, str(self.problem), repeat)
        return profile_of(runs, {str(self.problem): [(str(self.problem), f"tvmconv {self.selection.name}")]})

    def source(self, kind: str = "source") -> str:
        """Return the kernel as text.

        `kind` is "tvmscript" (the scheduled function), "source" (CUDA C++, or LLVM IR for a CPU), or what a compiler
        makes of that: "ptx" for CUDA, "asm" for a CPU.
        """
        backend = backend_of(self.target)
        kinds = backend.text_views
        if kind not in kinds:
            raise InvalidArgumentError("kind", kind, f"one of {', '.join(kinds)} for the target {backend.kind}")
        if kind == "tvmscript":
            return str(self._lowered().script())
        module = self._compiled().mod
        with llvm.options_of(module):
            return backend.text(module, kind, self.target)

    def sources(self) -> list[str]:
        """Return the CUDA source by translation units; an empty list for a CPU."""
        return cuda.sources(self._compiled().mod)

    def resources(self) -> tuple[cuda.KernelResources, ...]:
        """Return registers, shared memory and spills of the kernel, by the CUDA compiler; empty for a CPU."""
        return tuple(
            kernel for each in self.sources() for kernel in cuda.kernel_resources(each, cuda_arch(self.target))
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the operator to one file that `tvmconv.load` reads; needs a C++ compiler to link it."""
        executable = self._compiled()
        storage.save(executable, self.KIND, str(self.target), self._details(executable), path)

    def _lowered(self) -> tirx.PrimFunc:
        """Return the scheduled function."""
        func, _ = take_out(lower(self.problem, self.selection, self.target, KERNEL_NAME), self.target)
        return func

    def _compiled(self) -> Executable:
        """Build the kernel again: a loaded one has no source."""
        return build_kernel(self.problem, self.selection, self.target).executable

    def _details(self, executable: Executable) -> dict[str, Any]:
        """Return the details that the file holds besides the code of the executable."""
        return {
            "workload": msgspec.to_builtins(self.workload),
            "precision": self.problem.precision,
            "open_sizes": self.problem.open_sizes,
            "mirrored": self.problem.mirrored,
            "channels_last": self.problem.channels_last,
            "direction": self.problem.direction,
            "template": self.selection.name,
            "config": msgspec.to_builtins(self.selection.config),
            "reason": self.selection.reason,
            "workspace": msgspec.to_builtins(self._workspace),
        }

    def __reduce__(self) -> tuple[Any, tuple[type[Operator], bytes]]:
        """Let `pickle` and `copy.deepcopy` take the bytes of the file that `save` writes: it needs a C++ compiler.

        One that was loaded has them already. Unpickling runs the code in them.
        """
        content = storage.saved_bytes(self.save) if self._content is None else self._content.read()
        return _from_bytes, (type(self), content)

    @classmethod
    def from_saved(cls, module: Module, description: storage.Description, content: storage.Content) -> Operator:
        """Return the operator that `save` wrote to a file with such a description and content."""
        operator = cls._from_details(module, description.target, description.details)
        operator._content = content
        return operator

    @classmethod
    def _from_details(cls, module: Module, target: str, details: dict[str, Any]) -> Operator:
        """Return the operator with code that was loaded, by the details of its file."""
        workload, selection = cls._saved_choice(details)
        # None of these is in files from before it.
        precision, open_sizes = details.get("precision", DEFAULT), tuple(details.get("open_sizes", ()))
        orders = {name: details.get(name, False) for name in ("mirrored", "channels_last")}
        direction = details.get("direction", FORWARD)
        problem = Problem(workload, precision=precision, open_sizes=open_sizes, direction=direction, **orders)
        workspace = msgspec.convert(details["workspace"], Workspace)
        return cls(problem, resolve_target(target), selection, module, workspace)

    @staticmethod
    def _saved_choice(details: dict[str, Any]) -> tuple[ConvWorkload, Selection]:
        template = template_named(details["template"])
        knobs = {registry.knob_name(details["template"], name): value for name, value in details["config"].items()}
        config = msgspec.convert(knobs, template.Config)
        selection = Selection(template, config, details["reason"], details["template"])
        return msgspec.convert(details["workload"], ConvWorkload), selection

    def __repr__(self) -> str:
        return f"<tvmconv.{type(self).__name__} {self.problem} for {self.target.kind.name} by {self.selection.name}>"


def _from_bytes(kind: type[Operator], content: bytes) -> Operator:
    """Return the operator in the bytes of a file that `Operator.save` wrote."""
    return kind.from_saved(*storage.read_bytes(content))


def compile(  # noqa: A001
    workload: ConvWorkload,
    target: Any = "llvm",
    config: Any = None,
    algorithm: str = "auto",
    precision: Word | str = DEFAULT,
    open_sizes: Sequence[OpenAxis] = (),
) -> Operator:
    """Compile the operator for a workload on a target (anything that `resolve_target` takes).

    `config` is a configuration of a schedule, checked against its constraints; without one the tuning logs choose, or
    the schedule's default is used: `selection.reason` says which, and so does this module's logger. `algorithm` is
    "auto", or the one to use: "depthwise" for depthwise workloads, else "direct", "im2win", "winograd" for 3x3 kernels
    (on a GPU for 5x5 too), "tensor" for the tensor cores of a GPU, or on a CPU "pointwise" for 1x1 kernels and "dot"
    for its dot products.
    `precision` is "float32", or "strict" or "tf32" for more or less exact results with float32 operands; see
    `Problem.precision` and the rows of `problem.precision`. With the `open_sizes` "batch" it is for any batch, and the
    one in the workload is what the configuration is chosen for; so with "height" and "width", where a template takes
    these.

    Building for "cuda" needs no GPU, running does. Raises `InvalidArgumentError` for a workload that no template takes
    on the target, and for a configuration that breaks a constraint.

    >>> import tvmconv
    >>> workload = tvmconv.ConvWorkload.depthwise((1, 32, 56, 56), (32, 1, 3, 3), activation="relu")
    >>> operator = tvmconv.compile(workload, "llvm")
    >>> print(operator.selection.name)
    cpu/depthwise
    """
    if not isinstance(workload, ConvWorkload):
        raise InvalidArgumentError("workload", workload, "a ConvWorkload, such as ConvWorkload.conv2d makes")
    problem = Problem(workload, precision=precision, open_sizes=tuple(open_sizes))
    resolved = resolve_target(target)
    selection = select(problem, resolved, config, algorithm)
    logger.info("%s by %s: %s", problem, selection.name, selection.reason)
    return compile_problem(problem, selection, resolved)


def compile_problem(problem: Problem, selection: Selection, target: tvm.target.Target) -> Operator:
    """Compile the operator for a problem by a template and a configuration that were selected."""
    kernel = build_kernel(problem, selection, target)
    return Operator(problem, target, selection, kernel.executable, kernel.workspace)
