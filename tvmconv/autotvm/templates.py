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

import base64
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from math import isfinite
from typing import Any, TypeVar

import msgspec
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.analysis import estimate_tir_flops

from ..dispatch import select
from ..errors import InvalidArgumentError, MissingPackageError
from ..targets import resolve_target
from ..workload import ConvWorkload
from .config_space import ConfigEntity, ConfigSpace, FallbackConfigEntity
from .history import applied, device_here
from .knobs import Value
from .problem import Call, Problem, tuples
from .task import Entity, Maker, Task

VERSION = 1
"""In the records of such templates: what their knobs mean is the user's affair, and a knob or value that is gone is
noticed."""

F = TypeVar("F", bound=Callable[..., Any])

_templates: dict[str, Callable[..., Any]] = {}
_config: ContextVar[ConfigSpace | ConfigEntity | None] = ContextVar("config", default=None)


def template(task_name: str) -> Callable[[F], F]:
    """A decorator for a function that returns a schedule and its arguments: `(s_tir.Schedule, [te.Tensor, ...])`.

    The schedule is one of `te.create_prim_func` of the same arguments; those that are no placeholders are outputs. The
    function gets its knobs from `get_config`. It is named by `task_name` in tasks and logs, and called with what a log
    can hold: numbers, strings, True, False, None, and tuples of them.

    Called as it is, in a `with tvm.target.Target(...)`, it returns the schedule with the best configuration of the logs
    that are applied, or else with the default one, with a warning.
    """
    if not isinstance(task_name, str) or not task_name:
        raise InvalidArgumentError("task_name", task_name, "a name, such as 'tutorial/matmul'")

    def decorated(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidArgumentError("template", function, "a function")
        if (known := _templates.get(task_name)) is not None and _where(known) != _where(function):
            raise InvalidArgumentError("task_name", task_name, f"a name that no other has; {_where(known)} has it")
        _templates[task_name] = function

        @wraps(function)
        def dispatched(*args: Any, **named: Any) -> Any:
            if named:
                raise InvalidArgumentError("arguments", sorted(named), f"those of {task_name} by position")
            target = tvm.target.Target.current(allow_none=True)
            workload = (task_name, *recordable(args))
            with applied_config(query(target, workload)):
                return _checked(task_name, function(*workload[1:]))

        return dispatched  # type: ignore[return-value]

    return decorated


def get_config() -> Any:
    """The knobs of the template that is running: a `ConfigSpace` while it is asked for them, else a `ConfigEntity`."""
    if (config := _config.get()) is None:
        raise InvalidArgumentError("config", None, "get_config() called by a function with @autotvm.template")
    return config


@contextmanager
def applied_config(config: ConfigSpace | ConfigEntity) -> Iterator[None]:
    """In its block `get_config` returns this."""
    token = _config.set(config)
    try:
        yield
    finally:
        _config.reset(token)


def create_task(task_name: str, args: Sequence[Any] = (), target: Any = None) -> TemplateTask:
    """The task of tuning a template, called with some arguments, for a target; it is called here for its knobs."""
    if target is None:
        raise InvalidArgumentError("target", target, "what the template is tuned for, such as 'llvm' or 'cuda'")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise InvalidArgumentError("args", args, "a tuple of arguments")
    call = Call(task_name, msgspec.json.encode(recordable(args)).decode())
    task = TemplateTask(call, resolve_target(target))
    _ = task.space  # what is wrong with it is said now
    return task


@dataclass(frozen=True)
class TemplateTask(Task):
    """A template of one's own, called with some arguments, to tune for a target."""

    call: Call
    target: tvm.target.Target
    weight: int = 1

    @property
    def problem(self) -> Call:
        return self.call

    @property
    def args(self) -> tuple[Any, ...]:
        """What the template is called with."""
        return self.call.args

    @property
    def workload(self) -> tuple[Any, ...]:
        """The template's name, and what it is called with."""
        return self.call.template, *self.args

    @property
    def maker(self) -> Maker:
        return Maker(self.call.template, VERSION, self._accepts)

    @property
    def space(self) -> ConfigSpace:
        return self._collected[0]

    @property
    def computation(self) -> tuple[te.Tensor, ...]:
        """The arguments of the kernel; those that are no placeholders are computed."""
        return self._collected[1]

    @cached_property
    def flop(self) -> float:
        return self.space.flop or float(estimate_tir_flops(tvm.IRModule({"main": self.unscheduled()})))

    def unscheduled(self) -> tirx.PrimFunc:
        """The computation as it was defined: what a kernel is compared with."""
        return te.create_prim_func([*self.computation])

    def instantiate(self, config: ConfigEntity) -> tuple[Schedule, list[te.Tensor]]:
        """What the template returns for a configuration; refuses one of which it says that it makes no kernel."""
        fresh = ConfigEntity(config.space, config.index, config.places)
        result = self._called(fresh)
        if not fresh.valid():
            raise InvalidArgumentError("config", str(config), f"another one: {'; '.join(fresh.errors)}")
        return result

    def check(self, config: ConfigEntity | None = None) -> None:
        """Builds the kernel of a configuration, or the default's, and compares it with the unscheduled computation.

        Where there is no GPU for a CUDA kernel, its serial twin is built for the CPU. `WrongResultError` says where
        they differ.
        """
        from .template_kernels import check

        check(self, config or self.space.default)

    def entity(self, config: Any) -> Entity:
        entity: Entity = config.entity
        return entity

    def config(self, knobs: Mapping[str, Value]) -> ConfigEntity:
        return self.space.configured({name: tuples(value) for name, value in knobs.items()})

    def features(self, config: Any) -> tuple[float, ...]:
        numbers: tuple[float, ...] = config.numbers()
        return numbers

    def for_problem(self, problem: Call) -> TemplateTask:
        return TemplateTask(problem, self.target)

    def __str__(self) -> str:
        return str(self.call)

    def _accepts(self, knobs: Mapping[str, Value]) -> bool:
        try:
            self.config(knobs)
        except InvalidArgumentError:
            return False
        return True

    @cached_property
    def _collected(self) -> tuple[ConfigSpace, tuple[te.Tensor, ...]]:
        space = ConfigSpace()
        _, tensors = self._called(space)
        return space, tuple(tensors)

    def _called(self, config: ConfigSpace | ConfigEntity) -> tuple[Schedule, list[te.Tensor]]:
        function = function_of(self.call)
        with applied_config(config), self.target:
            return _checked(self.call.template, function(*self.args))


def function_of(call: Call) -> Callable[..., Any]:
    """The function of a call's template, undecorated."""
    if call.template not in _templates:
        known = ", ".join(_templates) or "none is there"
        raise InvalidArgumentError("task_name", call.template, f"a template that is defined: {known}")
    return _templates[call.template]


def query(target: Any, workload: Any) -> Any:
    """The configuration that a task's `workload` gets on a target: of the logs that are applied, or the default.

    For a convolution it is the one that `tvmconv.compile` takes.
    """
    if target is None:
        raise InvalidArgumentError("target", None, "a template called in `with tvm.target.Target('llvm'):` or another")
    if isinstance(workload, ConvWorkload):
        return select(workload, resolve_target(target)).config
    name, *args = workload
    task = create_task(name, args, target)
    device = device_here(task.target)
    for history in applied():
        record, left_out = history.best_of_task(task, device)
        if record is not None:
            return task.config(record.knobs)
        if left_out:
            why = ", ".join(f"{count} {text}" for text, count in left_out.items())
            warnings.warn(f"{history.source}: records of {task} are left out: {why}", stacklevel=3)
    warnings.warn(f"no record of {task} for {task.target.kind.name}: the default configuration is used", stacklevel=3)
    return FallbackConfigEntity()


def recordable(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments as they are after a log: tuples for lists; refuses those that no log can hold."""

    def checked(value: Any, place: str) -> Any:
        if isinstance(value, list | tuple):
            return tuple(checked(each, f"{place}[{i}]") for i, each in enumerate(value))
        is_number = type(value) in (int, float) and isfinite(value) and abs(value) < 2**63
        if is_number or value is None or type(value) in (bool, str):
            return value
        raise InvalidArgumentError(place, value, "a finite number, a string, True, False, None or a tuple of them")

    return tuple(checked(value, f"args[{place}]") for place, value in enumerate(args))


class _Message(msgspec.Struct):
    """A call for another process, with what it takes to make it there."""

    template: str
    arguments: str
    function: str
    """Pickled, in base64."""
    path: list[str]
    """Where Python looks for modules that the function needs."""


def sent(call: Call) -> str:
    """One line of JSON from which another process knows a call and its template: `problem_from` reads it."""
    try:
        import cloudpickle
    except ImportError:
        raise MissingPackageError("cloudpickle", "tune", "tuning") from None
    try:
        pickled = cloudpickle.dumps(function_of(call))
    except (TypeError, ValueError, AttributeError) as error:
        expected = f"one that uses what can be sent to another process ({error})"
        raise InvalidArgumentError("template", call.template, expected) from None
    message = _Message(*call, base64.b64encode(pickled).decode(), sys.path)
    return msgspec.json.encode(message).decode()


def problem_from(text: str) -> Problem | Call:
    """What `to_json` of a problem or of a call has written; a call's template is known from then on.

    The text comes from the process that began this one, or from the client of an RPC server: its function is code.
    """
    return _received(text) if text.startswith("{") else Problem.from_json(text)


@lru_cache(maxsize=4)
def _received(text: str) -> Call:
    import cloudpickle

    message = msgspec.json.decode(text, type=_Message)
    sys.path += [path for path in message.path if path not in sys.path]
    _templates[message.template] = cloudpickle.loads(base64.b64decode(message.function))
    return Call(message.template, message.arguments)


def _checked(name: str, result: Any) -> tuple[Schedule, list[te.Tensor]]:
    """What a template returned, if it is what one has to return."""
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


def _where(function: Callable[..., Any]) -> str:
    """Where a function is written: the same where its file runs a second time."""
    code = function.__code__
    return f"{function.__qualname__} in {code.co_filename}, line {code.co_firstlineno}"
