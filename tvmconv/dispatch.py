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

ALGORITHMS = {"cuda": ("direct", "im2win"), "llvm": ("direct", "im2win")}
"""The templates for convolutions whose channels meet; the first is taken where nothing has been measured."""


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
    """The modules of `tvmconv.schedules` that schedule this workload on this target: all, or an algorithm's."""
    kind = target.kind.name
    known = ("depthwise",) if workload.is_depthwise else ALGORITHMS[kind]
    if algorithm not in ("auto", *known):
        raise InvalidArgumentError("algorithm", algorithm, f"auto or {' or '.join(known)}, for {workload} on {kind}")
    return tuple(template_named(f"{FOLDERS[kind]}/{name}") for name in known if algorithm in ("auto", name))


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
