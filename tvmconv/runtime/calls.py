"""Calls of kernels: the first call checks arrays and prepares what further calls with similar arrays reuse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tvm

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.support.cache import Cache

from .arrays import (
    ARGUMENT_FUNCTIONS,
    Operand,
    allocator,
    argument_maker,
    argument_to_write,
    channels_last_allocator,
    contiguous,
    described,
    in_channels_last,
    require_order,
    result_type,
    same_kind,
)

MAX_CACHED_CALLS = 4096
"""The number of kinds of calls that are remembered at once, and of kernels, of some 100 kB each, that calls keep."""

PLAIN = frozenset({int, str, type(None)})
"""The types whose values equal, among values of these types, only values of one type."""

Spec = tuple[tuple[int, ...], str]
"""The shape and dtype of an array."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with all that a call of it needs, for arrays like those that have been checked."""

    kernel: Any
    extents: tuple[tuple[str, int], ...]
    """The name and the bytes of each operand, in order."""
    output: Spec
    """The shape and dtype of the output as the caller sees it."""
    output_bytes: int
    device: tvm.runtime.Device
    new_output: Callable[[], Any]
    new_workspace: tuple[Callable[[], Any], ...]
    result: type | None
    """The type of new outputs that are returned as they are; None where a result is made from them."""
    conversions: tuple[tuple[int, Callable[[Any], Any]], ...] = ()
    """The indices of operands that the kernel takes in another form, with the functions that convert them."""
    as_argument: Callable[[Any], Any] | None = None
    """The function that makes the kernel's argument of the output array; None where the array is the argument."""
    channels_last: bool = False
    """True if the output is a tensor of torch in channels_last."""

    @classmethod
    def prepare(
        cls,
        kernel: Any,
        x: Any,
        operands: Sequence[Operand],
        inputs: Mapping[str, Spec],
        output: Spec,
        workspace: Sequence[Spec],
        device: tvm.runtime.Device,
        channels_last: Container[str] = (),
    ) -> Launch:
        """Return the launch for operands like these on a device; x, the first as the caller gave it, has the kind.

        `channels_last` has the names of the operands that the kernel takes as tensors of torch in channels_last, and
        "output" if that is one.
        """
        writes_channels_last = "output" in channels_last
        new_output = (channels_last_allocator if writes_channels_last else allocator)(x, *output)
        extents = tuple((name, _nbytes(spec)) for name, spec in inputs.items())
        conversions = tuple(
            (index, in_channels_last if item.name in channels_last else contiguous)
            for index, item in enumerate(operands)
            if (item.needs_channels_last if item.name in channels_last else item.is_channels_last)
        )
        return cls(
            kernel,
            extents,
            output,
            _nbytes(output),
            device,
            new_output,
            tuple(allocator(x, *spec) for spec in workspace),
            result_type(x),
            conversions,
            as_argument=argument_maker(x, output[1]),
            channels_last=writes_channels_last,
        )

    def to_write(self, out: Operand) -> Launch:
        """Return the launch that writes to arrays like `out`; raise `InvalidArgumentError` if it cannot."""
        out.check(*self.output, self.device)
        require_order(out, self.channels_last)
        return replace(self, as_argument=None)  # `argument_to_write` has already made the argument

    def run(self, arguments: list[Any], target: Any = None) -> Any:
        """Call the kernel with arguments of `ARGUMENT_FUNCTIONS`, a list that is changed, and return the output.

        That is a new array, or a `target` that `argument_to_write` returned.
        """
        for index, convert in self.conversions:
            arguments[index] = convert(arguments[index])
        if target is None:
            target = self.new_output()
            if self.result is not None and type(target) is not self.result:
                expected = "a tensor with data: call outside of FakeTensorMode"
                raise InvalidArgumentError("output", "a tensor without data", expected)
        else:
            self.require_no_overlap(target, arguments)
        arguments.append(target if self.as_argument is None else self.as_argument(target))
        for new in self.new_workspace:
            arguments.append(new())
        self.kernel(*arguments)
        return target

    def require_no_overlap(self, target: Any, arguments: list[Any]) -> None:
        """Raise `InvalidArgumentError` if an argument shares memory with the output."""
        first = target.data_ptr()
        last = first + self.output_bytes
        for argument, (name, nbytes) in zip(arguments, self.extents, strict=True):
            start = argument.data_ptr()
            if start < last and first < start + nbytes:
                raise InvalidArgumentError("out", f"memory of {name}", "an array that shares no memory with an operand")


Prepare = Callable[[Any, list[Operand]], Launch]
"""A function that checks operands and returns the launch for arrays like them, from the first array as it was given."""


class Calls:
    """Makes calls; calls that differ only in the contents of their arrays are prepared once."""

    def __init__(self) -> None:
        self.known: Cache[tuple[Hashable, ...], Launch] = Cache(MAX_CACHED_CALLS)

    def __call__(self, prepare: Prepare, about: Hashable, arrays: dict[str, Any], out: Any) -> Any:
        """Return the result for the operands as an array of the kind of the first, or in `out` if it is given.

        `about` is a key of everything else that decides on the launch.
        """
        arguments: list[Any] = []
        key: list[Hashable] = [about]
        for name, array in arrays.items():
            argument, facts = ARGUMENT_FUNCTIONS[type(array)](name, array)
            arguments.append(argument)
            key.append(facts)
        if out is not None:
            target, facts = argument_to_write("out", out)
            key.append(facts)
        launch = self.known.get(tuple(key))
        if launch is None:
            written = None if out is None else described("out", out, target)
            launch = self._prepared(prepare, tuple(key), arrays, arguments, written)
        target = launch.run(arguments, None if out is None else target)
        if out is None:
            return same_kind(next(iter(arrays.values())), target) if launch.result is None else target
        if target is out:  # a tensor of torch, whose former content autograd may have saved
            sys.modules["torch"].autograd.graph.increment_version(out)
        return out

    def _prepared(
        self,
        prepare: Prepare,
        key: tuple[Hashable, ...],
        arrays: dict[str, Any],
        arguments: Sequence[Any],
        out: Operand | None,
    ) -> Launch:
        operands = [described(*item, argument) for item, argument in zip(arrays.items(), arguments, strict=True)]
        launch = prepare(next(iter(arrays.values())), operands)
        if out is not None:
            launch = launch.to_write(out)
        self.known.put(key, launch)
        return launch


def present(x: Any, w: Any, scale: Any, shift: Any, residual: Any) -> dict[str, Any]:
    """Return the operands of a convolution that are not None, in order."""
    arrays = {"x": x, "w": w}
    if scale is not None:
        arrays["scale"] = scale
    if shift is not None:
        arrays["shift"] = shift
    if residual is not None:
        arrays["residual"] = residual
    return arrays


def hashable(value: Any) -> Any:
    """Return the value as a key; a value that no workload takes becomes text, which the workload refuses."""
    if isinstance(value, (list, tuple)):
        return tuple(value) if PLAIN.issuperset(map(type, value)) else tuple(map(hashable, value))
    # What isinstance(value, Hashable) looks at, in a third of the time.
    return repr(value) if type(value).__hash__ is None else value


def types_of(value: Any) -> Any:
    """Return the type of a value, or of each item of a tuple: True == 1 == 1.0, but a workload takes one of them."""
    if not isinstance(value, tuple):
        return type(value)
    types = tuple(map(type, value))
    return types if PLAIN.issuperset(types) else tuple(map(types_of, value))


def _nbytes(spec: Spec) -> int:
    shape, dtype = spec
    return prod(shape) * np.dtype(dtype).itemsize
