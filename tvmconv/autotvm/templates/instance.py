"""A call of a user-defined template: its knobs, its computation, and its schedule by a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvmconv.dispatch.call import Call, function_named, tuples
from tvmconv.dispatch.task import Value
from tvmconv.problem.errors import InvalidArgumentError

from .config_space import ConfigEntity, ConfigSpace

_config: ContextVar[ConfigSpace | ConfigEntity | None] = ContextVar("config", default=None)


def get_config() -> Any:
    """Return the knobs of the template that is running.

    They are a `ConfigSpace` while the template is asked for them, else a `ConfigEntity`.
    """
    if (config := _config.get()) is None:
        raise InvalidArgumentError("config", None, "get_config() called by a function with @autotvm.template")
    return config


@contextmanager
def applied_config(config: ConfigSpace | ConfigEntity) -> Iterator[None]:
    """Let `get_config` return this configuration in the block."""
    token = _config.set(config)
    try:
        yield
    finally:
        _config.reset(token)


@dataclass(frozen=True)
class Instance:
    """A user-defined template, with the arguments that it is called with, for a target."""

    call: Call
    target: tvm.target.Target

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments that the template is called with."""
        return self.call.args

    @property
    def space(self) -> ConfigSpace:
        return self._collected[0]

    @property
    def computation(self) -> tuple[te.Tensor, ...]:
        """The arguments of the kernel; those that are no placeholders are computed."""
        return self._collected[1]

    def unscheduled(self) -> tirx.PrimFunc:
        """Return the computation as it was defined, which kernels are compared with."""
        return te.create_prim_func([*self.computation])

    def instantiate(self, config: ConfigEntity) -> tuple[Schedule, list[te.Tensor]]:
        """Return the template's schedule for a configuration; refuse one that the template has rejected."""
        fresh = ConfigEntity(config.space, config.index, config.value_indices)
        result = self._called(fresh)
        if not fresh.valid():
            raise InvalidArgumentError("config", str(config), f"another one: {'; '.join(fresh.errors)}")
        return result

    def config(self, knobs: Mapping[str, Value]) -> ConfigEntity:
        return self.space.configured({name: tuples(value) for name, value in knobs.items()})

    def __str__(self) -> str:
        return str(self.call)

    @cached_property
    def _collected(self) -> tuple[ConfigSpace, tuple[te.Tensor, ...]]:
        space = ConfigSpace()
        _, tensors = self._called(space)
        return space, tuple(tensors)

    def _called(self, config: ConfigSpace | ConfigEntity) -> tuple[Schedule, list[te.Tensor]]:
        function = function_named(self.call.template)
        with applied_config(config), self.target:
            return checked(self.call.template, function(*self.args))


def checked(name: str, result: Any) -> tuple[Schedule, list[te.Tensor]]:
    """Return a template's result; raise `InvalidArgumentError` unless it is a schedule with its arguments."""
    expected = f"(s_tir.Schedule, [te.Tensor, ...]) returned by the template {name}"
    if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Schedule)):
        raise InvalidArgumentError("result", result if result is None else type(result).__name__, expected)
    schedule, tensors = result
    if not isinstance(tensors, Sequence) or not all(isinstance(each, te.Tensor) for each in tensors):
        raise InvalidArgumentError("arguments", tensors, expected)
    if all(isinstance(each.op, te.PlaceholderOp) for each in tensors):
        raise InvalidArgumentError("arguments", [each.name for each in tensors], f"an output in the list {expected}")
    for each in tensors:
        if not all(isinstance(size, int | tirx.IntImm) for size in each.shape):
            raise InvalidArgumentError(f"shape of {each.name}", list(map(str, each.shape)), "sizes that are numbers")
    shapes = [[(tuple(each.shape), str(each.dtype)) for each in tensors]]
    shapes += [[(tuple(each.ty.shape), str(each.ty.dtype)) for each in schedule.mod["main"].params]]
    given, scheduled = ([(list(map(int, shape)), dtype) for shape, dtype in each] for each in shapes)
    if given != scheduled:
        raise InvalidArgumentError("arguments", given, f"those of the schedule of {name}: {scheduled}")
    return schedule, list(tensors)
