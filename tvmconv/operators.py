"""Convolutions as functions on arrays, whose kernels are compiled on first use and kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from json import dumps
from typing import Any

import tvm

from . import threads
from .arrays import Operand, in_float32, operand, reshaped
from .calls import PLAIN, Calls, Launch, given, hashable, types_of
from .dispatch import algorithm_of, algorithms_for, range_with, registry, template_for, template_name, tuned
from .dispatch.history import History, applied
from .dtypes import DTYPES, KNOWN, NARROW
from .errors import InvalidArgumentError
from .operator import Operator, compile, compile_problem  # noqa: A004
from .parameters import Activation, Padding
from .precision import DEFAULT
from .problem import Problem
from .targets import backend_of, backend_on, resolve_target
from .workload import ConvWorkload

__all__ = ["Operator", "compile", "conv2d", "depthwise"]

logger = logging.getLogger(__name__)


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
    is given. `out` is an array to write to and return instead of a new one, as for `Operator`. Tensors of torch in
    channels_last are as for `conv2d`. Kernels are compiled on first use, tuned as `compile` says, and kept. For
    gradients see `tvmconv.nn`.

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
    "auto", which takes what a tuning log has found fastest, or else what should be; "direct"; "im2win"; "winograd", for
    3x3 kernels, on a GPU for 5x5 too; "tensor", for the tensor cores of a GPU; or on a CPU "pointwise", for 1x1
    kernels, and "dot", for dot products of integers and bfloat16. With as many groups as input channels, so with a
    single one too, a convolution is depthwise. The rest is as for `depthwise`.

    A torch tensor x in channels_last goes in as it is where a schedule takes it: on a GPU's tensor cores, by the
    algorithm "tensor", for output channels in fours, with groups in sixteens; and on a GPU where each channel is
    convolved by itself to one output, by "depthwise_nhwc". The result is then in channels_last, and so must `out` be; w
    and a residual that are not are copied in every call. Elsewhere x is copied in every call, which this module's
    logger says, and the result is contiguous. With the `layout` "NHWC" arrays of any kind have the shapes
    (N, H, W, C), (K, R, S, C/groups) and (N, Ho, Wo, K); it is refused where no schedule takes it.

    On a CPU or tensor cores x may be of int8 or uint8, w of int8. Sums of `(x - x_zero_point) * w` are exact; padding
    adds nothing. The result is these sums in int32, without an epilogue; or in another `out_dtype`, the residual's too,
    what the epilogue makes of them in float32: in "int8" and "uint8" rounded, to even, plus `out_zero_point`,
    saturated. Of float16 and bfloat16 the result may be in the `out_dtype` "float32".

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
    about = kind, options, types, algorithm, precision, target, present_state()
    return _calls(lambda x, operands: prepare(about, x, operands), about, arrays, out)


def prepare(about: tuple[Any, ...], x: Any, operands: list[Operand]) -> Launch:
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
    channels_last = image.is_channels_last and takes_channels_last(
        Problem(workload, precision=precision), algorithm, target
    )
    if channels_last:
        workload = workload.in_nhwc()
    if workload.is_depthwise and weight.shape != workload.w_shape:
        conversions[1] = partial(reshaped, shape=workload.w_shape)
    problem = Problem(workload, precision=precision, channels_last=channels_last)
    operator = operator_for(problem, algorithm, target, state)
    for place, convert in conversions.items():
        operands[place] = operand(operands[place].name, convert(operands[place].argument))
    launch = operator.launch(x, operands)
    return replace(launch, conversions=(*conversions.items(), *launch.conversions))


def takes_channels_last(problem: Problem, algorithm: str, target: str) -> bool:
    """Return whether a template takes the tensors of a problem in NCHW as they lie in channels_last."""
    workload = problem.workload
    if workload.is_in_nchw:
        nhwc = Problem(workload.in_nhwc(), precision=problem.precision)
        known = algorithms_for(nhwc, resolve_target(target))
        if known and algorithm in ("auto", *known):
            return True
    logger.info("%s: x is in channels_last, and copied in each call on %s", workload, target)
    return False


_calls = Calls()
State = tuple[int, int, tuple[History, ...]]
"""The state that decides on configurations beside a call: changes of threads and of templates, and the logs applied."""


def present_state() -> State:
    """Return the state that holds now."""
    return threads.changes, registry.changes, applied.get()


_operators: dict[tuple[Problem, str, str, State], Operator] = {}
_first_batches: dict[tuple[Problem, str, str, State], int] = {}
"""The first batch that each convolution, as one of any batch, was called with on a GPU."""

_lock = threading.Lock()


def _kept(problem: Problem, algorithm: str, target: str, state: State) -> Operator:
    """Return the operator for a problem, compiled the first time that it is asked for in this state."""
    key = problem, algorithm, target, state
    if key not in _operators:
        with _lock:
            if key not in _operators:
                _operators[key] = compile_problem(problem, target, None, algorithm)
    return _operators[key]


def operator_for(problem: Problem, algorithm: str, target: str, state: State) -> Operator:
    """Return the operator for a call's problem: for any batch where that serves."""
    operator = _kept(_for_any_batch(problem, algorithm, target, state), algorithm, target, state)
    return operator if operator.takes(problem.workload) else _kept(problem, algorithm, target, state)


def _for_any_batch(problem: Problem, algorithm: str, target: str, state: State) -> Problem:
    """Return the problem with an open batch where its template takes that, unless a log has records of this batch.

    On a GPU, where kernels for any batch may be slower, the first batch of a convolution has a kernel of its own: most
    convolutions have no other. The others share kernels, one for each range of batches. So do all batches of a linear
    layer on a CPU, where one row has other tiles than many.
    """
    resolved, batch, opened = resolve_target(target), problem.workload.batch, problem.with_any_batch()
    lost = set(algorithms_for(problem, resolved)) - set(algorithms_for(opened, resolved))
    if lost and algorithm_of(template_name(template_for(problem, resolved, algorithm))) in lost:
        return problem
    on_gpu = backend_of(resolved).on_gpu
    if on_gpu and _first_batches.setdefault((opened, algorithm, target, state), batch) == batch:
        return problem
    if tuned(problem, resolved, algorithm):
        return problem
    has_ranges = on_gpu or problem.workload.is_linear
    return range_with(batch, opened, resolved, algorithm).problem if has_ranges else opened


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
