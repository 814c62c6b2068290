"""Which schedule and which configuration a workload gets on a target, and why."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import inf, prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgumentError
from .workload import ConvWorkload

if TYPE_CHECKING:
    import tvm

FOLDERS = {"cuda": "cuda", "llvm": "cpu"}
"""Folder of `schedules/` for each kind of target."""

ALGORITHMS = {"cuda": ("direct", "im2win"), "llvm": ("direct", "im2win")}
"""The templates for convolutions whose channels meet; the first is taken where nothing has been measured."""

POINTWISE_PIXELS = 16
"""The least plane for CPU's template for 1x1 convolutions: that many are in a vector."""


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


def templates_for(workload: ConvWorkload, target: tvm.target.Target, algorithm: str = "auto") -> tuple[ModuleType, ...]:
    """The modules of `tvmconv.schedules` that schedule this workload on this target: all, or an algorithm's.

    The first is the one that is taken where nothing has been measured.
    """
    kind = target.kind.name
    known = algorithms_for(workload, kind)
    if algorithm not in ("auto", *known):
        raise InvalidArgumentError("algorithm", algorithm, f"auto or {' or '.join(known)}, for {workload} on {kind}")
    templates = [template_named(f"{FOLDERS[kind]}/{name}") for name in known if algorithm in ("auto", name)]
    if "pointwise" in known and algorithm == "auto":
        estimates = {each: each.estimate(workload, target) for each in templates if hasattr(each, "estimate")}
        templates.sort(key=lambda each: estimates.get(each, inf))
    return tuple(templates)


def algorithms_for(workload: ConvWorkload, kind: str) -> tuple[str, ...]:
    """The names of the templates for a workload on a kind of target."""
    if workload.is_depthwise:
        return ("depthwise",)
    is_pointwise = workload.kernel == workload.stride == (1, 1) and not any(workload.padding)
    if kind == "llvm" and is_pointwise and prod(workload.output_size) >= POINTWISE_PIXELS:
        return (*ALGORITHMS[kind], "pointwise")
    return ALGORITHMS[kind]


def template_for(workload: ConvWorkload, target: tvm.target.Target, algorithm: str = "auto") -> ModuleType:
    """The first of `templates_for`."""
    return templates_for(workload, target, algorithm)[0]


def template_named(name: str) -> ModuleType:
    """The template with a name, such as "cuda/depthwise"."""
    return import_module(f"tvmconv.schedules.{name.replace('/', '.')}")


def template_name(template: ModuleType) -> str:
    """Where a template is, such as "cuda/depthwise"."""
    return "/".join(template.__name__.split(".")[-2:])


def select(workload: ConvWorkload, target: tvm.target.Target, config: Any = None, algorithm: str = "auto") -> Selection:
    """The template and configuration for a workload.

    A `config` given by the caller is checked and used, by the template that it belongs to; else the best that a tuning
    log has for this workload and this device, by any template of the algorithm; else the default of the first.
    """
    from .autotvm.history import tuned

    templates = templates_for(workload, target, algorithm)
    if config is None:
        if found := tuned(workload, target, templates):
            return found
        return Selection(templates[0], templates[0].default_config(workload, target), "default configuration")
    template = next((each for each in templates if each.Config is type(config)), None)
    if template is None:
        raise InvalidArgumentError("config", config, " or ".join(f"a {each.__name__}.Config" for each in templates))
    if broken := template.space(workload, target).violated(config):
        raise InvalidArgumentError("config", config, f"one that meets the constraints {', '.join(broken)}")
    return Selection(template, config, "configuration given by the caller")
