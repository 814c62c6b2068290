"""Tasks to tune, made from workloads, suites and models.

`ConvTask` is the task of one of tvmconv's own kernels; `templates.TemplateTask` that of a user-defined template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import msgspec
import tvm

from tvmconv.checking.suites import load_suite
from tvmconv.dispatch.registry import (
    algorithm_of,
    algorithms_for,
    dense_algorithms,
    template_for,
    template_name,
    to_message,
)
from tvmconv.dispatch.task import Entity, Maker, Task, Value
from tvmconv.network import Model, import_model, passes
from tvmconv.network.passes.context import Context
from tvmconv.network.passes.fused import fused_problems
from tvmconv.problem import FORWARD, Problem, Workload, problem_of
from tvmconv.problem.errors import InvalidArgumentError, names_of
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.space import Space
from tvmconv.schedules.template import Template
from tvmconv.targets import resolve_target

from .gone import NAMES
from .templates import TemplateTask, create_task

__all__ = ["ConvTask", "Task", "create", "extract_from_model", "extract_from_program", "extract_from_suite"]

__getattr__ = names_of(__name__, NAMES)

OP_LAYOUTS = {"nn.conv1d": "NCW", "nn.conv2d": "NCHW", "nn.dense": "NC"}
"""Relay's names of the operators that are tuned, and the layout of the data each reads in an imported model."""


@dataclass(frozen=True)
class ConvTask(Task):
    """A workload to tune for a target, by a template of tvmconv: a convolution, or several layers in one kernel."""

    workload: Workload
    target: tvm.target.Target
    weight: int = 1
    algorithm: str = "auto"
    """The algorithm to tune; "auto" is the one that dispatch takes where nothing has been measured."""
    sparsity: float | None = None
    """The share of zeros, at random indices that are always the same, in the weight of a sparse kernel; None for a
    dense one."""
    precision: str = DEFAULT
    """The precision of the problem, as for `tvmconv.compile`."""
    direction: str = FORWARD
    """The direction of the problem, one of `tvmconv.problem.DIRECTIONS`."""

    @property
    def problem(self) -> Problem:
        """The problem that the kernel solves."""
        return problem_of(self.workload, self.sparsity, self.precision, self.direction)

    @cached_property
    def template(self) -> Template:
        """The template that schedules the problem."""
        return template_for(self.problem, self.target, self.algorithm)

    @cached_property
    def maker(self) -> Maker:
        return Maker.of(self.template)

    @property
    def message(self) -> str:
        return to_message(self.name)

    @cached_property
    def space(self) -> Space[Any]:
        return self.template.space(self.problem, self.target)

    @property
    def flop(self) -> float:
        return float(self.workload.flops)

    def entity(self, config: Any) -> Entity:
        return tuple((name, "ot", value) for name, value in msgspec.to_builtins(config).items())

    def config(self, knobs: Mapping[str, Value]) -> Any:
        return msgspec.convert(knobs, self.template.Config)

    def features(self, config: Any) -> tuple[float, ...]:
        return (*vars(config).values(), *self.template.features(self.problem, config, self.target).values())

    def for_problem(self, problem: Problem) -> ConvTask:
        names = ("workload", "sparsity", "precision", "direction")
        return replace(self, **{name: getattr(problem, name) for name in names})

    def __str__(self) -> str:
        return f"{self.problem} by {self.name}"


@overload
def create(
    workload: Workload,
    target: Any,
    algorithm: str = "auto",
    sparsity: float | None = None,
    precision: str = DEFAULT,
    direction: str = FORWARD,
) -> ConvTask: ...


@overload
def create(task_name: str, args: Sequence[Any], target: Any) -> TemplateTask: ...


def create(*what: Any, **options: Any) -> Task:
    """Return the task of tuning one workload for a target, anything that `resolve_target` takes, by an algorithm.

    `create(workload, target, algorithm="auto", sparsity=None, precision="float32", direction="forward")`: with a
    `sparsity` it is the sparse kernel for a weight with that share of zeros: it has no other algorithm, no other
    precision than "float32", and the workload's scale is in the weight. `precision` is as for `tvmconv.compile`. With
    the `direction` "input_gradient" or "weight_gradient" it is that gradient of a depthwise workload, or where a
    convolution computes it, that: see `Problem.as_convolution`.

    `create(task_name, args, target)`: the task of the user-defined template that has that name, called with `args`:
    numbers, strings, True, False, None, and tuples of them.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> print(task)
    depthwise 1x32x14x14 -> 32, 3x3 padding 1,1,1,1 by cpu/depthwise
    """
    named = options.get("task_name", what[0] if what else None)
    task: Task = (create_task if isinstance(named, str) else _create)(*what, **options)
    return task


def _create(
    workload: Workload,
    target: Any,
    algorithm: str = "auto",
    sparsity: float | None = None,
    precision: str = DEFAULT,
    direction: str = FORWARD,
) -> ConvTask:
    if not isinstance(workload, Workload):
        raise InvalidArgumentError("workload", workload, "a ConvWorkload, or the name of a template")
    if sparsity is None:
        problem = problem_of(workload, precision=precision, direction=direction).as_convolution
        task = ConvTask(problem.workload, resolve_target(target), algorithm=algorithm)
        return task.for_problem(problem)
    if algorithm != "auto":
        raise InvalidArgumentError("algorithm", algorithm, "auto for a sparse kernel")
    if precision != DEFAULT:
        raise InvalidArgumentError("precision", precision, f"{DEFAULT} for a sparse kernel")
    if direction != FORWARD:
        raise InvalidArgumentError("direction", direction, f"{FORWARD} for a sparse kernel")
    if not isinstance(workload, ConvWorkload):
        raise InvalidArgumentError("sparsity", sparsity, f"None for {workload}")
    if not 0 <= sparsity <= 1:
        raise InvalidArgumentError("sparsity", sparsity, "a share of zeros from 0 to 1")
    return ConvTask(workload.without_scale(), resolve_target(target), sparsity=sparsity)


def extract_from_suite(
    name: str,
    target: Any,
    batch: int | None = None,
    dtype: str = "float32",
    algorithm: str = "auto",
    sparsity: float | None = None,
    precision: str = DEFAULT,
    direction: str = FORWARD,
) -> list[ConvTask]:
    """Return a task for each workload of a suite, with another batch size if one is given, in one of `DTYPES`.

    `algorithm` is for the workloads that it takes, not for depthwise ones, for which it is "auto"; for `sparsity` and
    `precision` see `create`. A gradient, see `direction` there, is that of each workload without its epilogue.

    >>> from tvmconv import autotvm
    >>> tasks = autotvm.extract_from_suite("depthwise-tutorial", "llvm", batch=1)
    >>> {task.workload.batch for task in tasks}
    {1}
    """
    resolved = resolve_target(target)
    workloads = list(load_suite(name, resolved.kind.name, batch, dtype).values())
    if direction != FORWARD:
        workloads = [each.without_epilogue() for each in workloads]
    problems = (Problem(workload, precision=precision, direction=direction).as_convolution for workload in workloads)
    return [_task(problem, resolved, algorithm, sparsity) for problem in problems]


def extract_from_model(
    model: Any, target: Any, algorithm: str = "auto", sparsity: float | None = None, precision: str = DEFAULT
) -> list[ConvTask]:
    """Return a task for each different convolution and linear layer of a model that has a template, in order.

    For a GPU, without a sparsity, those of several layers that one kernel computes follow, such as attention.

    `model` is what `tvmconv.import_model` returns, or anything it takes without `inputs`. A task's workload has the
    epilogue and the layouts that the network's kernel will have where no layer is sparse, and its weight is the number
    of layers with that workload. For `algorithm` see `extract_from_suite`. With a `sparsity`, see `create`, the tasks
    are those of the layers whose weights are constants, whatever zeros these have. `precision` is as for `build`.

    >>> import torch
    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> module = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1))
    >>> model = tvmconv.import_model(module, (torch.zeros(1, 8, 16, 16),))
    >>> sum(task.weight for task in autotvm.extract_from_model(model, "llvm"))
    2
    """
    return _extracted(model, target, algorithm, sparsity, precision, OP_LAYOUTS)


def extract_from_program(
    mod: Any, params: Mapping[str, Any] | None = None, target: Any = None, ops: Sequence[Any] | None = None
) -> list[ConvTask]:
    """Run `extract_from_model` under AutoTVM's name, on the result of `relay.frontend` or its function "main".

    `ops` are the operators to tune, of `OP_LAYOUTS`, as `relay.op.get` returns them or by their names.
    Parameters are in the model: `params` are those that the frontend returned, an empty mapping.

    >>> import torch
    >>> from tvmconv import autotvm, relay
    >>> module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> mod, params = relay.frontend.from_pytorch(module, [("x", (1, 3, 16, 16))])
    >>> tasks = autotvm.extract_from_program(mod["main"], params, "llvm", ops=[relay.op.get("nn.conv2d")])
    >>> tasks[0].workload.out_channels
    8
    """
    if params:
        raise InvalidArgumentError("params", list(params), "none: weights are constants of the model")
    if target is None:
        raise InvalidArgumentError("target", target, "what the model is tuned for, such as 'llvm' or 'cuda'")
    names = [*OP_LAYOUTS] if ops is None else [getattr(op, "name", op) for op in ops]
    if unknown := [name for name in names if name not in OP_LAYOUTS]:
        raise InvalidArgumentError("ops", unknown[0], f"operators that are tuned: {', '.join(OP_LAYOUTS)}")
    return _extracted(mod, target, "auto", None, DEFAULT, names)


def _extracted(
    model: Any, target: Any, algorithm: str, sparsity: float | None, precision: str, ops: Collection[str]
) -> list[ConvTask]:
    """Return the tasks of `extract_from_model` for some of the operators in `OP_LAYOUTS`.

    For all of these there are also the tasks of several operators in one kernel.
    """
    resolved = resolve_target(target)
    source = model if isinstance(model, Model) else import_model(model)
    layouts = {OP_LAYOUTS[name] for name in ops}
    context = Context(resolved, precision, "never" if sparsity is None else "always")
    mod = passes.run((*passes.PREPARING, *passes.FINDING), source.mod, context)
    if sparsity is None:  # sparse kernels read and write NCHW
        passes.run(passes.PLANNING, mod, context)
    problems = [
        layer.site.problem(context.precision)
        for layer in context.plan.layers
        if layer.is_dense
        and layer.site.convolution.layout in layouts
        and (sparsity is None or layer.site.weight is not None)
    ]
    if sparsity is None and len(ops) == len(OP_LAYOUTS):
        problems += fused_problems(mod, context)
    tasks = [_task(problem, resolved, algorithm, sparsity) for problem in problems]
    layers = Counter(task.problem for task in tasks)
    different = {task.problem: task for task in tasks}
    return [replace(task, weight=layers[problem]) for problem, task in different.items()]


def _task(problem: Problem, target: tvm.target.Target, algorithm: str, sparsity: float | None) -> ConvTask:
    """Return a task by the algorithm or, where that is for other problems, by the one that dispatch takes.

    In a network, whose weights are constants, dispatch may take another one than for the operator that is measured.
    """
    others = {"auto", *dense_algorithms()}.difference(algorithms_for(problem, target))
    if algorithm in others:
        is_dense = sparsity is None
        algorithm = algorithm_of(template_name(template_for(problem, target))) if is_dense else "auto"
    return create(problem.workload, target, algorithm, sparsity, problem.precision, problem.direction)
