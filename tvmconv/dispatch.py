"""Which schedule and which configuration a workload gets on a target, and why."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgumentError
from .workload import ConvWorkload

if TYPE_CHECKING:
    import tvm

FOLDERS = {"cuda": "cuda", "llvm": "cpu"}
"""Folder of `schedules/` for each kind of target."""


@dataclass(frozen=True)
class Selection:
    """A template, the configuration to use it with, and the reason in words."""

    template: ModuleType
    config: Any
    reason: str

    @property
    def name(self) -> str:
        """Where the template is, such as "cuda/depthwise"."""
        return template_name(self.template)


def algorithms(workload: ConvWorkload) -> tuple[str, ...]:
    """The algorithms that compute a workload; what chooses itself takes the first."""
    return ("depthwise",) if workload.is_depthwise else ("direct",)


def template_for(workload: ConvWorkload, target: tvm.target.Target, algorithm: str = "auto") -> ModuleType:
    """The module of `tvmconv.schedules` that schedules this workload on this target by this algorithm."""
    known = algorithms(workload)
    if algorithm not in ("auto", *known):
        raise InvalidArgumentError("algorithm", algorithm, f"auto or {' or '.join(known)} for {workload}")
    name = known[0] if algorithm == "auto" else algorithm
    return import_module(f"tvmconv.schedules.{FOLDERS[target.kind.name]}.{name}")


def template_name(template: ModuleType) -> str:
    """Where a template is, such as "cuda/depthwise"."""
    return "/".join(template.__name__.split(".")[-2:])


def select(workload: ConvWorkload, target: tvm.target.Target, config: Any = None, algorithm: str = "auto") -> Selection:
    """The template and configuration for a workload.

    A `config` given by the caller is checked and used; else the best that a tuning log has for this workload and this
    device; else the template's default.
    """
    from .autotvm.history import tuned

    template = template_for(workload, target, algorithm)
    if config is None:
        found = tuned(workload, target, template)
        if found is not None:
            return Selection(template, *found)
        return Selection(template, template.default_config(workload, target), "default configuration")
    if not isinstance(config, template.Config):
        raise InvalidArgumentError("config", config, f"a {template.__name__}.Config")
    if broken := template.space(workload, target).violated(config):
        raise InvalidArgumentError("config", config, f"one that meets the constraints {', '.join(broken)}")
    return Selection(template, config, "configuration given by the caller")
