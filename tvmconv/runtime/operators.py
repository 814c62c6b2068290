"""Calls of convolutions on arrays, whose kernels are compiled on first use and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from json import dumps
from math import prod
from typing import Any

import msgspec
import tvm

from tvmconv.dispatch import (
    Selection,
    algorithm_of,
    algorithms_for,
    range_with,
    registry,
    select,
    template_for,
    template_name,
    tuned,
)
from tvmconv.dispatch.history import History, applied
from tvmconv.lowering import MAX_BYTES
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import DTYPES, KNOWN, NARROW
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.support.cache import Cache
from tvmconv.targets import backend_of, backend_on, resolve_target, threads

from .arrays import Operand, in_float32, operand, reshaped
from .calls import MAX_CACHED_CALLS, PLAIN, Calls, Launch, hashable, types_of
from .operator import Operator, compile, compile_problem  # noqa: A004

__all__ = ["Operator", "call", "compile"]

logger = logging.getLogger(__name__)


OPTIONS = (
    *("stride", "padding", "dilation", "activation"),
    *("groups", "layout", "out_dtype", "x_zero_point", "out_zero_point"),
)
"""The options of a call, in the order in which the functions pass them on; a depthwise one has the first four."""


def call(
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
        target = as_text(target)
    about = kind, options, types, algorithm, precision, target, present_state()
    return _calls(lambda x, operands: prepare(about, x, operands), about, arrays, out)


def prepare(about: tuple[Any, ...], x: Any, operands: list[Operand]) -> Launch:
    """Return the launch of the kernel for a call's options and arrays."""
    kind, options, _, algorithm, precision, target, state = about
    image, weight, *others = operands
    if image.dtype not in DTYPES:
        raise InvalidArgumentError("x", image.dtype, f"an array of {KNOWN}")
    described = dict(zip(OPTIONS, options, strict=False)) | {item.name: True for item in others}
    has_images = image.shape[:1] != (0,)
    shape = image.shape if has_images else (1, *image.shape[1:])
    workload = getattr(ConvWorkload, kind)(shape, weight.shape, dtype=image.dtype, **described)
    weight.check(weight.shape, workload.storage.weight, image.device)
    if not has_images:
        return _launch_of_nothing(workload, x, operands)
    if target is None:
        target = backend_on(image.device.type).kind
    conversions: dict[int, Callable[[Any], Any]]
    conversions = {index: in_float32 for index, item in enumerate(operands) if _is_narrow(item, image.dtype)}
    channels_last = image.is_channels_last and takes_channels_last(
        Problem(workload, precision=precision), algorithm, target
    )
    if channels_last:
        workload = workload.in_nhwc()
    if workload.is_depthwise and weight.shape != workload.w_shape:
        conversions[1] = partial(reshaped, shape=workload.w_shape)
    problem = Problem(workload, precision=precision, channels_last=channels_last)
    operator = operator_for(problem, algorithm, target, state)
    for index, convert in conversions.items():
        operands[index] = operand(operands[index].name, convert(operands[index].argument))
    launch = operator.launch(x, operands)
    return replace(launch, conversions=(*conversions.items(), *launch.conversions))


def _launch_of_nothing(workload: ConvWorkload, x: Any, operands: list[Operand]) -> Launch:
    """Return the launch for no images, which runs no kernel; the workload is that of one image."""
    device = operands[0].device
    shape, dtype = workload.operands["output"]
    output = (0, *shape[1:]), dtype
    for item in operands[2:]:
        expected = output[0] if item.name == "residual" else workload.operands[item.name][0]
        item.check(expected, dtype if item.name == "residual" else item.dtype, device)
    inputs = {item.name: (item.shape, item.dtype) for item in operands}
    return Launch.prepare(lambda *arguments: None, x, operands, inputs, output, (), device)


def takes_channels_last(problem: Problem, algorithm: str, target: str) -> bool:
    """Return whether a template takes the tensors of a problem in NCHW directly in channels_last."""
    workload = problem.workload
    if workload.is_in_nchw:
        nhwc = msgspec.structs.replace(problem, workload=workload.in_nhwc())
        known = algorithms_for(nhwc, resolve_target(target))
        if known and algorithm in ("auto", *known):
            return True
    image, *_ = problem.operands
    logger.info("%s: %s is in channels_last, and copied in each call on %s", problem, image, target)
    return False


_calls = Calls()
State = tuple[int, int, tuple[History, ...]]
"""The state that configurations depend on besides a call: changes of threads and of templates, and the logs applied."""


def present_state() -> State:
    """Return the state that holds now."""
    return threads.changes, registry.changes, applied.get()


Key = tuple[Problem, str, str, State]
"""A problem, the algorithm asked for, the target, and the state."""

_selections: Cache[Key, Selection] = Cache(MAX_CACHED_CALLS)
_operators: Cache[tuple[Hashable, ...], Operator] = Cache(MAX_CACHED_CALLS)
"""Operators by problem, template, configuration and target: logs that choose the same ones share them."""

_first_sizes: Cache[Key, tuple[int, int]] = Cache(MAX_CACHED_CALLS)
"""The batch and width of the first call on a GPU, for each convolution as one of open sizes."""


def _cached_operator(problem: Problem, algorithm: str, target: str, state: State) -> Operator:
    """Return the operator for a problem, compiled the first time that its configuration is selected."""
    resolved = resolve_target(target)

    def selected() -> Selection:
        selection = select(problem, resolved, None, algorithm)
        logger.info("%s by %s: %s", problem, selection.name, selection.reason)
        return selection

    selection = _selections.get_or_make((problem, algorithm, target, state), selected)
    threads_and_templates = state[:2]
    key = problem, selection.name, selection.config, target, threads_and_templates
    return _operators.get_or_make(key, lambda: compile_problem(problem, selection, resolved))


def operator_for(problem: Problem, algorithm: str, target: str, state: State) -> Operator:
    """Return the operator for a call's problem: for any batch, and any length of rows, where that serves."""
    operator = _cached_operator(_with_open_sizes(problem, algorithm, target, state), algorithm, target, state)
    return operator if operator.takes(problem.workload) else _cached_operator(problem, algorithm, target, state)


def _with_open_sizes(problem: Problem, algorithm: str, target: str, state: State) -> Problem:
    """Return the problem with the open sizes that its template supports, unless a log has records of its sizes.

    These are the batch, and the width of planes of one row, such as sequences. On a GPU, where kernels for any sizes
    may be slower, the sizes of a convolution's first call have a separate kernel: most convolutions have no other
    sizes. Further sizes share kernels, one for each range of batches. So do all batches of a linear layer on a CPU,
    where one row has other tiles than many. For a gradient only the batch is open: see `with_any_batch`.
    """
    resolved, workload = resolve_target(target), problem.workload
    if problem.is_gradient:
        return problem if tuned(problem, resolved, algorithm) else with_any_batch(problem, resolved)
    opened = problem.with_any_length() or problem.with_any_batch()
    lost = set(algorithms_for(problem, resolved)) - set(algorithms_for(opened, resolved))
    if lost and algorithm_of(template_name(template_for(problem, resolved, algorithm))) in lost:
        return problem
    by_batch, sizes = backend_of(resolved).kernels_by_batch, (workload.batch, workload.width)
    if by_batch and _first_sizes.get_or_make((opened, algorithm, target, state), lambda: sizes) == sizes:
        return problem
    if tuned(problem, resolved, algorithm):
        return problem
    has_ranges = not opened.has_open_planes and (by_batch or workload.is_linear)
    return range_with(workload.batch, opened, resolved, algorithm).problem if has_ranges else opened


def with_any_batch(problem: Problem, target: tvm.target.Target) -> Problem:
    """Return the problem of a gradient for any batch; the kernel is chosen for the batch in its workload.

    On a GPU that is the power of two below the batch, since the blocks of a grid share out images too; arrays that are
    too large for a kernel of any batch get a kernel for their batch.
    """
    if not backend_of(target).kernels_by_batch:
        return problem.with_any_batch()
    workload = problem.workload
    if workload.itemsize * max(map(prod, (workload.x_shape, workload.output_shape))) > MAX_BYTES:
        return problem
    batch = 1 << (workload.batch.bit_length() - 1)
    return msgspec.structs.replace(
        problem, workload=msgspec.structs.replace(workload, batch=batch), open_sizes=("batch",)
    )


def _is_narrow(item: Operand, dtype: str) -> bool:
    """Return whether an operand is a vector in half precision, the dtype of x; other vectors fail their check."""
    return item.name in ("scale", "shift") and item.dtype == dtype and dtype in NARROW


def as_text(target: Any) -> str:
    """Return a target, in any form, as text for `resolve_target`; resolving takes longer than many a kernel."""
    if isinstance(target, tvm.target.Target):
        return str(target)
    if isinstance(target, dict):
        with suppress(TypeError):  # targets in it
            return dumps(target)
    return str(resolve_target(target))
