"""Templates of one's own: a function that schedules a computation by knobs, tuned as tvmconv's own templates are.

@autotvm.template("tutorial/matmul")
def matmul(n, dtype):
    a, b = (te.placeholder((n, n), dtype, name) for name in "AB")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("C")
    y, x, k = sch.get_loops(block)
    cfg = autotvm.get_config()
    cfg.define_split("tile_y", n, num_outputs=2)
    yo, yi = cfg["tile_y"].apply(sch, block, y)
    sch.reorder(yo, x, k, yi)
    return sch, [a, b, c]
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from math import isfinite
from typing import Any, TypeVar

import msgspec
import tvm
from tvm.s_tir.analysis import estimate_tir_flops

from tvmconv.dispatch.call import Call, define
from tvmconv.dispatch.history import applied, device_here
from tvmconv.dispatch.selection import select
from tvmconv.dispatch.task import Entity, Maker, Task, Value
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import resolve_target

from . import kernels
from .config_space import ConfigEntity, FallbackConfigEntity
from .instance import Instance, applied_config, checked

VERSION = 1
"""The version of templates that users write, in their records: always this one.

The meaning of their knobs is the user's affair, and a knob or value that is gone is noticed.
"""

F = TypeVar("F", bound=Callable[..., Any])


def template(task_name: str) -> Callable[[F], F]:
    """Return a decorator for a function that returns a schedule and its arguments.

    The function returns `(s_tir.Schedule, [te.Tensor, ...])`. The schedule is one of `te.create_prim_func` of the same
    arguments; those that are no placeholders are outputs. The function gets its knobs from `get_config`. It is named by
    `task_name` in tasks and logs, and called with what a log can hold: numbers, strings, True, False, None, and tuples
    of them.

    Called as it is, in a `with tvm.target.Target(...)`, it returns the schedule with the best configuration of the logs
    that are applied, or else with the default one, with a warning.

    >>> from tvm import te
    >>> from tvm.s_tir import Schedule
    >>> from tvmconv import autotvm
    >>> @autotvm.template("example/doubled")
    ... def doubled(n):
    ...     x = te.placeholder((n,), name="x")
    ...     y = te.compute((n,), lambda i: 2 * x[i], name="y")
    ...     sch = Schedule(te.create_prim_func([x, y]))
    ...     cfg = autotvm.get_config()
    ...     cfg.define_split("tile", n, num_outputs=2)
    ...     _, inner = cfg["tile"].apply(sch, sch.get_sblock("y"), sch.get_loops(sch.get_sblock("y"))[0])
    ...     sch.vectorize(inner)
    ...     return sch, [x, y]
    >>> task = autotvm.create("example/doubled", (8,), "llvm")
    >>> [config["tile"].size for config in task.config_space.configs]
    [(-1, 1), (-1, 2), (-1, 4), (-1, 8)]
    >>> task.check(task.config_space.get(1))
    """
    if not isinstance(task_name, str) or not task_name:
        raise InvalidArgumentError("task_name", task_name, "a name, such as 'tutorial/matmul'")

    def decorated(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidArgumentError("template", function, "a function")
        define(task_name, function)

        @wraps(function)
        def dispatched(*args: Any, **named: Any) -> Any:
            if named:
                raise InvalidArgumentError("arguments", sorted(named), f"those of {task_name} by position")
            target = tvm.target.Target.current(allow_none=True)
            workload = (task_name, *recordable(args))
            with applied_config(query(target, workload)):
                return checked(task_name, function(*workload[1:]))

        return dispatched  # type: ignore[return-value]

    return decorated


def create_task(task_name: str, args: Sequence[Any] = (), target: Any = None) -> TemplateTask:
    """Return the task of tuning a template, called with some arguments, for a target.

    The template is called here to learn its knobs.
    """
    if target is None:
        raise InvalidArgumentError("target", target, "what the template is tuned for, such as 'llvm' or 'cuda'")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise InvalidArgumentError("args", args, "a tuple of arguments")
    call = Call(task_name, msgspec.json.encode(recordable(args)).decode())
    task = TemplateTask(call, resolve_target(target))
    _ = task.space  # raises errors of the template now
    return task


@dataclass(frozen=True)
class TemplateTask(Instance, Task):
    """A task to tune a template of one's own, called with some arguments, for a target."""

    weight: int = 1

    @property
    def problem(self) -> Call:
        return self.call

    @property
    def workload(self) -> tuple[Any, ...]:
        """The template's name, followed by the arguments that it is called with."""
        return self.call.template, *self.args

    @property
    def maker(self) -> Maker:
        return Maker(self.call.template, VERSION, self._accepts)

    @cached_property
    def flop(self) -> float:
        return self.space.flop or float(estimate_tir_flops(tvm.IRModule({"main": self.unscheduled()})))

    def check(self, config: ConfigEntity | None = None) -> None:
        """Build the kernel of a configuration, or the default's, and compare it with the unscheduled computation.

        Where there is no GPU for a CUDA kernel, its serial twin is built for the CPU. `WrongResultError` says where
        they differ.
        """
        kernels.check(self, config or self.space.default)

    def entity(self, config: Any) -> Entity:
        entity: Entity = config.entity
        return entity

    def features(self, config: Any) -> tuple[float, ...]:
        numbers: tuple[float, ...] = config.numbers()
        return numbers

    def for_problem(self, problem: Call) -> TemplateTask:
        return TemplateTask(problem, self.target)

    def _accepts(self, knobs: Mapping[str, Value]) -> bool:
        try:
            self.config(knobs)
        except InvalidArgumentError:
            return False
        return True


def query(target: Any, workload: Any) -> Any:
    """Return the configuration that a task's `workload` gets on a target: from the logs applied, or the default.

    For a convolution it is the one that `tvmconv.compile` takes.
    """
    if target is None:
        raise InvalidArgumentError("target", None, "a template called in `with tvm.target.Target('llvm'):` or another")
    if isinstance(workload, ConvWorkload):
        return select(Problem(workload), resolve_target(target)).config
    name, *args = workload
    task = create_task(name, args, target)
    device = device_here(task.target)
    for history in applied.get():
        record, left_out = history.best_of_task(task, device)
        if record is not None:
            return task.config(record.knobs)
        if left_out:
            why = ", ".join(f"{count} {text}" for text, count in left_out.items())
            warnings.warn(f"{history.source}: records of {task} are left out: {why}", stacklevel=3)
    warnings.warn(f"no record of {task} for {task.target.kind.name}: the default configuration is used", stacklevel=3)
    return FallbackConfigEntity()


def recordable(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments as they are after a log: tuples for lists; refuse those that no log can hold."""

    def copied(value: Any, name: str) -> Any:
        if isinstance(value, list | tuple):
            return tuple(copied(each, f"{name}[{i}]") for i, each in enumerate(value))
        is_number = type(value) in (int, float) and isfinite(value) and abs(value) < 2**63
        if is_number or value is None or type(value) in (bool, str):
            return value
        raise InvalidArgumentError(name, value, "a finite number, a string, True, False, None or a tuple of them")

    return tuple(copied(value, f"args[{index}]") for index, value in enumerate(args))
