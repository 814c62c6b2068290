"""What is tuned: a problem on a target, with the space of its template."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import tvm

from ..bench.suites import load_suite
from ..dispatch import ALGORITHMS, algorithms_for, sparse_template, template_for, template_name
from ..errors import InvalidArgumentError
from ..schedules.space import Space
from ..targets import resolve_target
from ..workload import ConvWorkload


class Problem(NamedTuple):
    """What a kernel is for; one configuration is the best of each."""

    workload: ConvWorkload
    sparsity: float | None = None
    """Share of zeros in the weight, which is compiled in; None for a dense kernel, which has the weight as operand."""

    def __str__(self) -> str:
        return str(self.workload) if self.sparsity is None else f"{self.workload}, {100 * self.sparsity:g}% zeros"

    def to_json(self) -> str:
        """One line of JSON, for another process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The problem that `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class Task:
    """A workload to tune for a target; `create`, `extract_from_suite` and `extract_from_model` make them."""

    workload: ConvWorkload
    target: tvm.target.Target
    weight: int = 1
    """How many layers of the model compute this."""
    algorithm: str = "auto"
    """The algorithm to tune; "auto" is the one that dispatch takes where nothing has been measured."""
    sparsity: float | None = None
    """Share of zeros in the weight, where a sparse kernel is tuned: they are at random places, always the same."""

    @property
    def problem(self) -> Problem:
        """What the kernel is for."""
        return Problem(self.workload, self.sparsity)

    @cached_property
    def template(self) -> ModuleType:
        """The module of `tvmconv.schedules` that schedules the workload."""
        if self.sparsity is not None:
            return sparse_template(self.target)
        return template_for(self.workload, self.target, self.algorithm)

    @cached_property
    def name(self) -> str:
        """The template's name, such as "cuda/depthwise"."""
        return template_name(self.template)

    @cached_property
    def space(self) -> Space[Any]:
        """The configurations to choose from; the first is the default."""
        density = () if self.sparsity is None else (1 - self.sparsity,)
        space: Space[Any] = self.template.space(self.workload, self.target, *density)
        return space

    def __str__(self) -> str:
        return f"{self.problem} by {self.name}"


def create(workload: ConvWorkload, target: Any, algorithm: str = "auto", sparsity: float | None = None) -> Task:
    """The task of tuning one workload for a target, anything that `resolve_target` takes, by an algorithm.

    With a `sparsity` it is the sparse kernel for a weight with that share of zeros: it has no other algorithm, and the
    workload's scale is in the weight.
    """
    if sparsity is None:
        return Task(workload, resolve_target(target), algorithm=algorithm)
    if algorithm != "auto":
        raise InvalidArgumentError("algorithm", algorithm, "auto for a sparse kernel")
    if not 0 <= sparsity <= 1:
        raise InvalidArgumentError("sparsity", sparsity, "a share of zeros from 0 to 1")
    return Task(workload.without_scale(), resolve_target(target), sparsity=sparsity)


def extract_from_suite(
    name: str,
    target: Any,
    batch: int | None = None,
    dtype: str = "float32",
    algorithm: str = "auto",
    sparsity: float | None = None,
) -> list[Task]:
    """A task for each workload of a suite, with another batch size if one is given, in float32 or float16.

    `algorithm` is for the workloads that it takes, not for depthwise ones, for which it is "auto"; for `sparsity` see
    `create`.
    """
    resolved = resolve_target(target)
    workloads = load_suite(name, resolved.kind.name, batch, dtype).values()
    return [create(workload, resolved, _for(workload, algorithm, resolved), sparsity) for workload in workloads]


def extract_from_model(model: Any, target: Any, algorithm: str = "auto", sparsity: float | None = None) -> list[Task]:
    """A task for each different convolution and linear layer of a model that has a template, in the model's order.

    `model` is what `tvmconv.import_model` returns, or anything it takes without `inputs`. A task's workload has the
    epilogue and the layouts that the network's kernel will have where no layer is sparse, and its weight is the number
    of layers with that workload. For `algorithm` see `extract_from_suite`. With a `sparsity`, see `create`, the tasks
    are those of the layers whose weights are constants, whatever zeros these have.
    """
    from ..network import Model, import_model
    from ..network.kernels import sites_for
    from ..network.layouts import choose_layouts

    resolved = resolve_target(target)
    source = model if isinstance(model, Model) else import_model(model)
    sites = sites_for(source.mod, resolved)
    if sparsity is None:  # sparse kernels read and write NCHW
        sites, _ = choose_layouts(source.mod, sites, resolved)
    tasks = [
        create(site.workload, resolved, _for(site.workload, algorithm, resolved), sparsity)
        for site in sites
        if site.workload is not None and (sparsity is None or site.weight is not None)
    ]
    layers = Counter(task.problem for task in tasks)
    different = {task.problem: task for task in tasks}
    return [replace(task, weight=layers[problem]) for problem, task in different.items()]


def _for(workload: ConvWorkload, algorithm: str, target: tvm.target.Target) -> str:
    kind = target.kind.name
    is_for_others = algorithm in ALGORITHMS[kind] and algorithm not in algorithms_for(workload, kind)
    return "auto" if is_for_others else algorithm
