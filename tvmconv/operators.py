"""Convolutions as functions on arrays, and as compiled operators that can be kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from json import dumps
from os import PathLike
from typing import Any, Literal

import msgspec
import tvm
from tvm import tirx
from tvm.runtime import Executable, Module

from . import cuda, storage, threads
from .arrays import Operand, in_float32, in_nhwc, operand, reshaped, view_in_nhwc
from .calls import PLAIN, Calls, Launch, given, hashable, types_of
from .dispatch import Selection, algorithms_for, registry, select, template_for, template_name, template_named, tuned
from .dispatch.history import History, applied
from .dtypes import DTYPES, KNOWN, NARROW
from .errors import InvalidArgumentError
from .lowering import KERNEL_NAME, build_kernel, lower
from .parameters import Activation, Padding
from .precision import DEFAULT
from .problem import ASSUMED_BATCH, Problem
from .targets import backend_of, backend_on, cross_triple, cuda_arch, device_of, resolve_target
from .workload import ConvWorkload
from .workspace import Workspace, take_out

logger = logging.getLogger(__name__)


class Operator:
    """A convolution compiled for one workload and one target; `tvmconv.compile` makes it.

    With open sizes it takes arrays of any such size, in the place of the workload's.

    Call it with the arrays of `workload.operands` but the last, the output, which it returns: x (N, C, H, W),
    w (`workload.w_shape`), and what the epilogue has of vectors (K,) in float32 and of a residual (N, K, Ho, Wo), in
    the workload's layouts.
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
        self.workload = workload = problem.workload
        self.target = target
        self.selection = selection
        # Code for another kind of CPU can be shown and saved.
        self._kernel = None if cross_triple(str(target)) else module[KERNEL_NAME]
        self._workspace = workspace
        self._inputs = [name for name in workload.operands if name not in (*self.COMPILED_IN, "output")]
        self._calls = Calls()

    def __call__(
        self, x: Any, w: Any, scale: Any = None, shift: Any = None, residual: Any = None, *, out: Any = None
    ) -> Any:
        """Convolve x with w; return an array of the kind of x on the device of x.

        `out` is an array to write to and return instead of a new one: of NumPy, torch or TVM, contiguous, where no
        operand is. Raises `InvalidArgumentError` for an array that is not what the workload says, `NoDeviceError`
        where the target's device is missing.
        """
        return self._calls(self.launch, (), given(x, w, scale, shift, residual), out)

    def launch(self, x: Any, operands: Sequence[Operand]) -> Launch:
        """Return the launch of the kernel for arrays like these, which are checked; x decides the result's kind."""
        names = [item.name for item in operands]
        if names != self._inputs:
            raise InvalidArgumentError("operands", ", ".join(names), f"the workload's: {', '.join(self._inputs)}")
        device = tvm.runtime.device(self._device_type, operands[0].device.index)
        workload = self._workload_of(operands[0])
        specs, workspace = workload.operands, self._workspace.sized(workload.batch)
        for item in operands:
            item.check(*specs[item.name], device)
        inputs, output = {name: specs[name] for name in names}, specs["output"]
        return Launch.prepare(self._kernel, x, operands, inputs, output, workspace, device)

    def _workload_of(self, x: Operand) -> ConvWorkload:
        """Return the workload with the open sizes of an image; raise `InvalidArgumentError` for what kernels refuse."""
        if not self.problem.open_sizes or len(x.shape) != len(self.workload.operands["x"][0]):
            return self.workload
        row, column = self.workload.x_layout.spatial
        places = {"batch": 0, "height": row, "width": column}
        return msgspec.structs.replace(
            self.workload, **{name: x.shape[places[name]] for name in self.problem.open_sizes}
        )

    @property
    def workspace_bytes(self) -> int:
        """The bytes of memory that a call takes beside its operands and output; for a batch of one where that is open.

        On a GPU it is allocated as the output is: for a torch tensor by torch, on the current stream. On a CPU TVM
        allocates it and keeps it for the thread's next calls; what threads take for single tasks comes on top.
        """
        return self._workspace.nbytes

    @cached_property
    def _device_type(self) -> int:
        return int(device_of(self.target).dlpack_device_type())

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
        return backend.text(self._compiled().mod, kind, self.target)

    def sources(self) -> list[str]:
        """Return the CUDA source by translation units; an empty list for a CPU."""
        return cuda.sources(self._compiled().mod) if backend_of(self.target).on_gpu else []

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
        """Return the details that the file holds beside the code of the executable."""
        return {
            "workload": msgspec.to_builtins(self.workload),
            "precision": self.problem.precision,
            "open_sizes": self.problem.open_sizes,
            "template": self.selection.name,
            "config": msgspec.to_builtins(self.selection.config),
            "reason": self.selection.reason,
            "workspace": msgspec.to_builtins(self._workspace),
        }

    @classmethod
    def from_saved(cls, module: Module, target: str, details: dict[str, Any]) -> Operator:
        """Return the operator that `save` wrote."""
        workload, selection = cls._saved_choice(details)
        # Neither is in files from before it.
        precision, open_sizes = details.get("precision", DEFAULT), tuple(details.get("open_sizes", ()))
        problem = Problem(workload, precision=precision, open_sizes=open_sizes)
        workspace = msgspec.convert(details["workspace"], Workspace)
        return cls(problem, resolve_target(target), selection, module, workspace)

    @staticmethod
    def _saved_choice(details: dict[str, Any]) -> tuple[ConvWorkload, Selection]:
        template = template_named(details["template"])
        knobs = {registry.knob_name(details["template"], name): value for name, value in details["config"].items()}
        config = msgspec.convert(knobs, template.Config)
        return msgspec.convert(details["workload"], ConvWorkload), Selection(template, config, details["reason"])

    def __repr__(self) -> str:
        return f"<tvmconv.{type(self).__name__} {self.problem} for {self.target.kind.name} by {self.selection.name}>"


def compile(  # noqa: A001
    workload: ConvWorkload,
    target: Any = "llvm",
    config: Any = None,
    algorithm: str = "auto",
    precision: str = DEFAULT,
    open_sizes: Sequence[str] = (),
) -> Operator:
    """Compile the operator for a workload on a target (anything that `resolve_target` takes).

    `config` is a configuration of a schedule, checked against its constraints; without one the tuning logs choose, or
    the schedule's default is used: `selection.reason` says which, and so does this module's logger. `algorithm` is
    "auto", or the one to use: "depthwise" for depthwise workloads, else "direct", "im2win", on a GPU "tensor" for its
    tensor cores, or on a CPU "pointwise" for 1x1 ones. `precision` is "float32", or "strict" or "tf32" for more or less
    exact results with float32 operands; see `Problem.precision` and the rows of `tvmconv.precision`. With the
    `open_sizes` "batch" it is for any batch, and the one in the workload is what the configuration is chosen for; so
    with "height" and "width", where a template takes these.
    Building for "cuda" needs no GPU, running does.
    """
    if not isinstance(workload, ConvWorkload):
        raise InvalidArgumentError("workload", workload, "a ConvWorkload, such as ConvWorkload.conv2d makes")
    resolved = resolve_target(target)
    problem = Problem(workload, precision=precision, open_sizes=tuple(open_sizes))
    selection = select(problem, resolved, config, algorithm)
    logger.info("%s by %s: %s", problem, selection.name, selection.reason)
    kernel = build_kernel(problem, selection, resolved)
    return Operator(problem, resolved, selection, kernel.executable, kernel.workspace)


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
    *,
    precision: str = DEFAULT,
    out: Any = None,
) -> Any:
    """Convolve x (N, C, H, W) depthwise with w (C, M, R, S): `activation(y * scale + shift)`, (N, C*M, Ho, Wo).

    x and w are both float32, both float16 or both bfloat16 (in NumPy that of `ml_dtypes`), summed in float32, and may
    be NumPy arrays, torch tensors (on a GPU: on the current stream) or any arrays with DLPack; the result is of the
    same kind on the same device. scale and shift are vectors (C*M,) in float32 or in the dtype of x. For padding,
    dilation and activation see `ConvWorkload.depthwise`, for precision `compile`. `target` is the device of x unless it
    is given. `out` is an array to write to and return instead of a new one, as for `Operator`. Kernels are compiled on
    first use, tuned as `compile` says, and kept. It has no gradient.

    >>> import numpy as np, tvmconv
    >>> x = np.random.rand(1, 32, 112, 112).astype("float32")
    >>> w = np.random.rand(32, 1, 3, 3).astype("float32")
    >>> tvmconv.depthwise(x, w, stride=2, activation="relu").shape
    (1, 32, 56, 56)
    """
    options = stride, padding, dilation, activation
    return _call("depthwise", options, "auto", precision, target, given(x, w, scale, shift, None), out)


def conv2d(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: Padding = "SAME",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    algorithm: str = "auto",
    target: Any = None,
    *,
    precision: str = DEFAULT,
    layout: str = "NCHW",
    out_dtype: str | None = None,
    x_zero_point: int = 0,
    out_zero_point: int = 0,
    out: Any = None,
) -> Any:
    """Convolve x (N, C, H, W) with w (K, C/groups, R, S): `activation(y * scale + shift + residual)`.

    The result is (N, K, Ho, Wo); a residual has its shape and dtype, scale and shift are vectors (K,). `algorithm` is
    "auto", which takes what a tuning log has found fastest, or else what should be; "direct"; "im2win"; "tensor", for
    the tensor cores of a GPU; or on a CPU "pointwise", for 1x1 kernels. With as many groups as input channels, so with
    a single one too, a convolution is depthwise. The rest is as for `depthwise`.

    A torch tensor x in channels_last goes in as it is where a schedule takes it: on a GPU's tensor cores, by the
    algorithm "tensor", for output channels in fours, with groups in sixteens. The result is then in channels_last, and
    so must `out` be; w and a residual that are not are copied in every call. Elsewhere x is copied in every call, which
    this module's logger says, and the result is contiguous. With the `layout` "NHWC" arrays of any kind have the shapes
    (N, H, W, C), (K, R, S, C/groups) and (N, Ho, Wo, K); it is refused where no schedule takes it.

    On tensor cores x may be of int8 or uint8, w of int8. Sums of `(x - x_zero_point) * w` are exact; padding adds
    nothing. The result is these sums in int32, without an epilogue; or in another `out_dtype`, the residual's too, what
    the epilogue makes of them in float32: in "int8" and "uint8" rounded, to even, plus `out_zero_point`, saturated.

    >>> import numpy as np, tvmconv
    >>> x = np.random.rand(1, 64, 56, 56).astype("float32")
    >>> w = np.random.rand(128, 64, 3, 3).astype("float32")
    >>> tvmconv.conv2d(x, w, stride=2, activation="relu").shape
    (1, 128, 28, 28)
    """
    options = stride, padding, dilation, activation, groups, layout, out_dtype, x_zero_point, out_zero_point
    return _call("conv2d", options, algorithm, precision, target, given(x, w, scale, shift, residual), out)


OPTIONS = (
    *("stride", "padding", "dilation", "activation"),
    *("groups", "layout", "out_dtype", "x_zero_point", "out_zero_point"),
)
"""The options of a call, in the order in which the functions pass them on; a depthwise one has the first four."""


def _call(
    kind: str,
    options: tuple[Any, ...],
    algorithm: str,
    precision: str,
    target: Any,
    arrays: dict[str, Any],
    out: Any,
) -> Any:
    """Compute the convolution of arrays that `ConvWorkload.<kind>` describes."""
    types = tuple(map(type, options))
    if not PLAIN.issuperset(types) or type(algorithm) is not str or type(precision) is not str:
        options = tuple(map(hashable, options))
        algorithm, precision = hashable(algorithm), hashable(precision)
        types = tuple(map(types_of, options))
    if target is not None and type(target) is not str:
        target = _as_text(target)
    about = kind, options, types, algorithm, precision, target, (threads.changes, registry.changes, applied.get())
    return _calls(lambda x, operands: _prepare(about, x, operands), about, arrays, out)


def _prepare(about: tuple[Any, ...], x: Any, operands: list[Operand]) -> Launch:
    """Return the launch of the kernel for a call's options and arrays."""
    kind, options, _, algorithm, precision, target, state = about
    image, weight, *others = operands
    if image.dtype not in DTYPES:
        raise InvalidArgumentError("x", image.dtype, f"an array of {KNOWN}")
    described = dict(zip(OPTIONS, options, strict=False)) | {item.name: True for item in others}
    workload = getattr(ConvWorkload, kind)(image.shape, weight.shape, dtype=image.dtype, **described)
    weight.check(weight.shape, workload.storage.weight, image.device)
    if target is None:
        target = backend_on(image.device.type).kind
    conversions: dict[int, Callable[[Any], Any]]
    conversions = {place: in_float32 for place, item in enumerate(operands) if _is_narrow(item, image.dtype)}
    channels_last = image.is_channels_last and _takes_channels_last(
        Problem(workload, precision=precision), algorithm, target
    )
    if channels_last:
        for place, item in enumerate(operands):
            if item.name == "residual":
                item.check(workload.output_shape, workload.output_storage.name, image.device)
            if item.name in ("x", "w", "residual"):
                conversions[place] = view_in_nhwc if item.is_channels_last else in_nhwc
        workload = workload.in_nhwc()
    elif workload.is_depthwise and weight.shape != workload.w_shape:
        conversions[1] = partial(reshaped, shape=workload.w_shape)
    problem = Problem(workload, precision=precision)
    operator = _kept(_for_any_batch(problem, algorithm, target), algorithm, target, state)
    for place, convert in conversions.items():
        operands[place] = operand(operands[place].name, convert(operands[place].argument))
    launch = operator.launch(x, operands)
    launch = replace(launch, conversions=(*conversions.items(), *launch.conversions))
    return launch.to_channels_last(x) if channels_last else launch


def _takes_channels_last(problem: Problem, algorithm: str, target: str) -> bool:
    """Return whether a template takes the tensors of a problem in NCHW as they lie in channels_last."""
    workload = problem.workload
    if workload.is_in_nchw and not workload.is_depthwise:
        nhwc = Problem(workload.in_nhwc(), precision=problem.precision)
        known = algorithms_for(nhwc, resolve_target(target))
        if known and algorithm in ("auto", *known):
            return True
    logger.info("%s: x is in channels_last, and copied in each call on %s", workload, target)
    return False


_calls = Calls()
State = tuple[int, int, tuple[History, ...]]
"""The state that decides on configurations beside a call: changes of threads and of templates, and the logs applied."""

_operators: dict[tuple[Problem, str, str, State], Operator] = {}
_lock = threading.Lock()


def _kept(problem: Problem, algorithm: str, target: str, state: State) -> Operator:
    """Return the operator for a problem, compiled the first time that it is asked for in this state."""
    key = problem, algorithm, target, state
    if key not in _operators:
        with _lock:
            if key not in _operators:
                workload, precision, open_sizes = problem.workload, problem.precision, problem.open_sizes
                _operators[key] = compile(workload, target, None, algorithm, precision, open_sizes)
    return _operators[key]


SPAN = 8
"""The ratio of batches from which another kernel is chosen on a GPU."""


def _for_any_batch(problem: Problem, algorithm: str, target: str) -> Problem:
    """Return the problem with an open batch where its template takes that, unless a log has records of this batch.

    On a GPU, where the number of blocks decides what is fast, batches up to the next power of `SPAN` share a kernel.
    """
    resolved, assumed = resolve_target(target), ASSUMED_BATCH
    while backend_of(resolved).on_gpu and SPAN * assumed <= problem.workload.batch:
        assumed *= SPAN
    opened = problem.with_any_batch(assumed)
    template = template_name(template_for(problem, resolved, algorithm)).partition("/")[2]
    if template not in algorithms_for(opened, resolved) or tuned(problem, resolved, algorithm):
        return problem
    return opened


def _is_narrow(item: Operand, dtype: str) -> bool:
    """Return whether an operand is a vector in the dtype of an x in half precision; others fail their own check."""
    return item.name in ("scale", "shift") and item.dtype == dtype and dtype in NARROW


def _as_text(target: Any) -> str:
    """Return a target that is no text as one that `resolve_target` takes; resolving takes longer than many a kernel."""
    if isinstance(target, tvm.target.Target):
        return str(target)
    if isinstance(target, dict):
        with suppress(TypeError):  # targets in it
            return dumps(target)
    return str(resolve_target(target))
