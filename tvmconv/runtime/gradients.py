"""The gradients of depthwise convolutions on arrays, by kernels that are compiled on first use and kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tvmconv.problem import Problem
from tvmconv.problem.dtypes import FLOATS, one_of
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_on

from .arrays import Operand
from .calls import Calls, Launch
from .operators import State, operator_for, present_state, takes_channels_last


class Geometry(NamedTuple):
    """The shapes and parameters of a depthwise convolution (N, C, H, W) with (C, M, R, S)."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    """The padding at the top, left, bottom and right."""
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
    return _gradient("input_gradient", geometry, {"dy": dy, "w": w})


def weight_gradient(dy: Any, x: Any, geometry: Geometry) -> Any:
    """Return the gradient (C, M, R, S) of a depthwise convolution's weight, from that of its output and its input.

    The rest is as for `input_gradient`, but x decides whether dy is taken in channels_last, too. The order in which
    products are summed depends on shapes alone.
    """
    return _gradient("weight_gradient", geometry, {"dy": dy, "x": x})


def _gradient(direction: str, geometry: Geometry, arrays: dict[str, Any]) -> Any:
    about = direction, geometry, present_state()
    return _calls(lambda dy, operands: prepare(about, dy, operands), about, arrays, None)


def prepare(about: tuple[str, Geometry, State], dy: Any, operands: list[Operand]) -> Launch:
    """Return the launch of the kernel for a gradient, one of `DIRECTIONS`, from arrays like these."""
    direction, geometry, state = about
    given, other = operands
    if given.dtype not in FLOATS:
        raise InvalidArgumentError("dy", given.dtype, f"an array of {one_of(FLOATS)}")
    problem = Problem(geometry.workload(given.dtype), direction=direction)
    for item in operands:
        item.check(*problem.operands[item.name], given.device)
    decides = other if other.name == "x" else given
    problem = problem.as_convolution
    if not problem.is_gradient:
        operands = [given._replace(name="x"), other]
    target = backend_on(given.device.type).kind
    if decides.is_channels_last and takes_channels_last(problem, "auto", target):
        problem = msgspec.structs.replace(problem, workload=problem.workload.in_nhwc(), channels_last=True)
    return operator_for(problem, "auto", target, state).launch(dy, operands)


_calls = Calls()
