"""The gradients of depthwise convolutions on arrays, by kernels for any batch, compiled on first use and kept."""

from __future__ import annotations

import logging
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tvmconv.cache import Cache
from tvmconv.errors import InvalidArgumentError
from tvmconv.lowering import (
    KERNEL_NAME,
    MOST_BYTES,
    Kernel,
    as_scheduled,
    build_function,
    given_in_channels_last,
    with_alignment,
    with_launch_bounds,
)
from tvmconv.problem import ASSUMED_BATCH, Problem
from tvmconv.problem.dtypes import FLOATS, one_of
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules import cpu, cuda
from tvmconv.targets import backend_of, backend_on, llvm, resolve_target

from .arrays import Operand
from .calls import KEPT, Calls, Launch
from .operators import State, operator_for, present_state, takes_channels_last

if TYPE_CHECKING:
    import tvm
    from tvm import tirx
    from tvm.s_tir import Schedule

logger = logging.getLogger(__name__)

SCHEDULES = {"cpu": cpu.gradients, "cuda": cuda.gradients}
"""The schedules of gradients, by the folders of templates."""

IN_NHWC = {"cuda": cuda.gradients_nhwc}
"""The schedules for tensors in NHWC, likewise."""


class Geometry(NamedTuple):
    """The shapes and parameters of a depthwise convolution (N, C, H, W) with (C, M, R, S)."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    """Its rows and columns at the top, left, bottom and right."""
    dilation: tuple[int, int]

    def workload(self, dtype: str) -> ConvWorkload:
        """Return the convolution of arrays of a type."""
        x_shape, w_shape, stride, padding, dilation = self
        return ConvWorkload.depthwise(x_shape, w_shape, stride=stride, padding=padding, dilation=dilation, dtype=dtype)


def input_gradient(dy: Any, w: Any, geometry: Geometry) -> Any:
    """Return the gradient (N, C, H, W) of a depthwise convolution's input, from that of its output and its weight.

    Both are arrays as `tvmconv.depthwise` takes them, of one floating-point type; so is the result, of the kind of dy.
    Sums are in float32. On a GPU a tensor of torch in channels_last goes in as it is where each channel has one output
    and the kernel has at most some hundred taps, and the result is then in channels_last; elsewhere it is copied.
    """
    return _gradient("input", geometry, {"dy": dy, "w": w})


def weight_gradient(dy: Any, x: Any, geometry: Geometry) -> Any:
    """Return the gradient (C, M, R, S) of a depthwise convolution's weight, from that of its output and its input.

    The rest is as for `input_gradient`, but x decides whether dy is taken in channels_last, too. The order in which
    products are summed depends on shapes alone.
    """
    return _gradient("weight", geometry, {"dy": dy, "x": x})


IMAGES = {"input": ("dy", "output"), "weight": ("dy", "x")}
"""The names of the images among the operands of a gradient's kernel, and its output."""


def _gradient(of: str, geometry: Geometry, arrays: dict[str, Any]) -> Any:
    about = of, geometry, present_state()
    return _calls(lambda dy, operands: prepare(about, dy, operands), about, arrays, None)


def prepare(about: tuple[str, Geometry, State], dy: Any, operands: list[Operand]) -> Launch:
    """Return the launch of the kernel for a gradient from arrays like these."""
    of, geometry, state = about
    given, other = operands
    if given.dtype not in FLOATS:
        raise InvalidArgumentError("dy", given.dtype, f"an array of {one_of(FLOATS)}")
    workload = geometry.workload(given.dtype)
    given.check(workload.output_shape, workload.dtype, given.device)
    other.check(workload.w_shape if of == "input" else workload.x_shape, workload.dtype, given.device)
    backend = backend_on(given.device.type)
    target = backend.kind
    if of == "input" and (convolution := as_convolution(workload)) is not None:
        return _convolution(convolution, dy, given, other, target, state)
    images = operands[:1] if of == "input" else operands
    in_channels = IN_NHWC.get(backend.templates)
    channels_last = images[-1].is_channels_last and in_channels is not None and in_channels.takes(workload)
    if channels_last:
        workload = workload.in_nhwc()
    problem = msgspec.structs.replace(any_batch(workload, target), channels_last=channels_last)
    kernel = _kept(of, problem, target, state)
    inputs = {item.name: (item.shape, item.dtype) for item in operands}
    output = (workload.x_shape if of == "input" else workload.w_shape, workload.dtype)
    memory, function = kernel.workspace.sized(workload), llvm.function_of(kernel.executable, KERNEL_NAME)
    in_channels_last = IMAGES[of] if channels_last else ()
    return Launch.prepare(function, dy, operands, inputs, output, memory, given.device, in_channels_last)


def _convolution(convolution: ConvWorkload, dy: Any, given: Operand, w: Operand, target: str, state: State) -> Launch:
    """Return the launch of the convolution that is a gradient, of dy in channels_last as it lies if a kernel does."""
    x = given._replace(name="x")
    channels_last = x.is_channels_last and takes_channels_last(Problem(convolution), "auto", target)
    problem = Problem(
        convolution.in_nhwc() if channels_last else convolution, mirrored=True, channels_last=channels_last
    )
    return operator_for(problem, "auto", target, state).launch(dy, [x, w])


def as_convolution(workload: ConvWorkload) -> ConvWorkload | None:
    """Return the convolution of dy that is the gradient with respect to the input; None where none is.

    It is one where the stride is 1 and each channel has one output, with taps in the other order and so much padding
    that windows reach all that each element was in.
    """
    before, after = workload.padding[:2], workload.padding[2:]
    padding = [size - 1 - side for sides in (before, after) for size, side in zip(workload.window, sides, strict=True)]
    if workload.stride != (1, 1) or workload.multiplier > 1 or min(padding) < 0:
        return None
    return ConvWorkload.depthwise(
        workload.output_shape, workload.w_shape, padding=padding, dilation=workload.dilation, dtype=workload.dtype
    )


def any_batch(workload: ConvWorkload, target: str) -> Problem:
    """Return the problem of gradients for any batch, with the one in its workload by which schedules choose.

    On a GPU that is the power of two below the batch, since the blocks of a grid share out images too; arrays that are
    too large for a kernel of any batch have one of their own.
    """
    on_gpu = backend_of(resolve_target(target)).on_gpu
    if on_gpu and workload.itemsize * max(map(prod, (workload.x_shape, workload.output_shape))) > MOST_BYTES:
        return Problem(workload)
    batch = 1 << (workload.batch.bit_length() - 1) if on_gpu else ASSUMED_BATCH
    return Problem(msgspec.structs.replace(workload, batch=batch), open_sizes=("batch",))


def lower(of: str, problem: Problem, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the scheduled function of a gradient, that of the "input" or of the "weight"."""
    schedules = (SCHEDULES if problem.workload.is_in_nchw else IN_NHWC)[backend_of(target).templates]
    schedule = getattr(schedules, f"{of}_gradient")(problem, target)
    func = as_kernel(schedule, target)
    return given_in_channels_last(func, IMAGES[of]) if problem.channels_last else func


def as_kernel(schedule: Schedule, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the function of a gradient's schedule as `build_function` takes it."""
    return with_alignment(with_launch_bounds(as_scheduled(schedule.mod["main"], KERNEL_NAME)), target)


def _kept(of: str, problem: Problem, target: str, state: State) -> Kernel:
    """Return the kernel of a gradient, compiled the first time that it is asked for in this state."""

    def compiled() -> Kernel:
        resolved = resolve_target(target)
        logger.info("the gradient of the %s of %s: compiled for %s", of, problem, target)
        return build_function(lower(of, problem, resolved), resolved)

    return _kernels.made((of, problem, target, state), compiled)


_calls = Calls()
_kernels: Cache[tuple[str, Problem, str, State], Kernel] = Cache(KEPT)
