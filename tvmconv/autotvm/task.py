"""What is tuned: a workload on a target, with the space of its template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import tvm

from ..bench.suites import load_suite
from ..dispatch import template_for, template_name
from ..schedules.space import Space
from ..targets import resolve_target
from ..workload import ConvWorkload


@dataclass(frozen=True)
class Task:
    """A workload to tune for a target; `create`, `extract_from_suite` and `extract_from_model` make them."""

    workload: ConvWorkload
    target: tvm.target.Target
    weight: int = 1
    """How many layers of the model compute this."""
    algorithm: str = "auto"
    """The algorithm to tune; "auto" is the one that dispatch takes where nothing has been measured."""

    @cached_property
    def template(self) -> ModuleType:
        """The module of `tvmconv.schedules` that schedules the workload."""
        return template_for(self.workload, self.target, self.algorithm)

    @cached_property
    def name(self) -> str:
        """The template's name, such as "cuda/depthwise"."""
        return template_name(self.template)

    @cached_property
    def space(self) -> Space[Any]:
        """The configurations to choose from; the first is the default."""
        space: Space[Any] = self.template.space(self.workload, self.target)
        return space

    def __str__(self) -> str:
        return f"{self.workload} by {self.name}"


def create(workload: ConvWorkload, target: Any, algorithm: str = "auto") -> Task:
    """The task of tuning one workload for a target, anything that `resolve_target` takes, by an algorithm."""
    return Task(workload, resolve_target(target), algorithm=algorithm)


def extract_from_suite(
    name: str, target: Any, batch: int | None = None, dtype: str = "float32", algorithm: str = "auto"
) -> list[Task]:
    """A task for each workload of a suite, with another batch size if one is given, in float32 or float16.

    `algorithm` is for the workloads that are not depthwise, which have one of their own.
    """
    resolved = resolve_target(target)
    workloads = load_suite(name, resolved.kind.name, batch, dtype).values()
    return [Task(workload, resolved, 1, _for(workload, algorithm)) for workload in workloads]


def extract_from_model(model: Any, target: Any, algorithm: str = "auto") -> list[Task]:
    """A task for each different convolution and linear layer of a model that has a template, in the model's order.

    `model` is what `tvmconv.import_model` returns, or anything it takes without `inputs`. A task's workload has the
    epilogue that the network's kernel will have, and its weight is the number of layers with that workload. For
    `algorithm` see `extract_from_suite`.
    """
    from ..network import Model, import_model
    from ..network.kernels import sites_for

    resolved = resolve_target(target)
    source = model if isinstance(model, Model) else import_model(model)
    workloads = [site.workload for site in sites_for(source.mod, resolved) if site.workload is not None]
    return [
        Task(workload, resolved, workloads.count(workload), _for(workload, algorithm))
        for workload in dict.fromkeys(workloads)
    ]


def _for(workload: ConvWorkload, algorithm: str) -> str:
    return "auto" if workload.is_depthwise else algorithm
