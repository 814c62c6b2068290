"""The templates in `schedules/`: by name, by target, and by what they take."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from ..schedules.space import Space
from ..targets import backend_named, backend_of, resolve_target
from ..workload import ConvWorkload

if TYPE_CHECKING:
    import tvm

ALGORITHMS = {"cuda": ("direct", "im2win"), "llvm": ("direct", "im2win", "pointwise")}
"""The templates for convolutions whose channels meet."""


def templates_for(workload: ConvWorkload, target: tvm.target.Target, algorithm: str = "auto") -> tuple[ModuleType, ...]:
    """The modules of `tvmconv.schedules` that schedule this workload on this target: all, or an algorithm's.

    The first is the one that is taken where nothing has been measured: that of the least estimate, if they have any.
    """
    kind = target.kind.name
    known = algorithms_for(workload, kind)
    if not known:
        raise InvalidArgumentError("layout", workload.layouts, f"NCHW, on {kind}")
    if algorithm not in ("auto", *known):
        raise InvalidArgumentError("algorithm", algorithm, f"auto or {' or '.join(known)}, for {workload} on {kind}")
    folder = backend_named(kind).templates
    templates = [template_named(f"{folder}/{name}") for name in known if algorithm in ("auto", name)]
    return tuple(sorted(templates, key=lambda template: estimated_cycles(template, workload, target)))


def estimated_cycles(template: ModuleType, workload: ConvWorkload, target: tvm.target.Target) -> float:
    """Cycles that a core should take by a template's default configuration; infinite for one without an estimate."""
    return float(template.estimate(workload, target)) if hasattr(template, "estimate") else inf


def algorithms_for(workload: ConvWorkload, kind: str) -> tuple[str, ...]:
    """The names of the templates that take a workload on a kind of target."""
    names = ("depthwise",) if workload.is_depthwise else ALGORITHMS[kind]
    folder = backend_named(kind).templates
    templates = {name: template_named(f"{folder}/{name}") for name in names}

    def supports(template: ModuleType) -> bool:
        return bool(template.supports(workload)) if hasattr(template, "supports") else workload.is_in_nchw

    return tuple(name for name, each in templates.items() if supports(each))


def template_for(workload: ConvWorkload, target: tvm.target.Target, algorithm: str = "auto") -> ModuleType:
    """The first of `templates_for`."""
    return templates_for(workload, target, algorithm)[0]


def sparse_template(target: tvm.target.Target) -> ModuleType:
    """The module of `tvmconv.schedules` that schedules convolutions whose weight is compiled in."""
    return template_named(f"{backend_of(target).templates}/sparse")


def template_named(name: str) -> ModuleType:
    """The template with a name, such as "cuda/depthwise"."""
    return import_module(f"tvmconv.schedules.{name.replace('/', '.')}")


def template_name(template: ModuleType) -> str:
    """Where a template is, such as "cuda/depthwise"."""
    return "/".join(template.__name__.split(".")[-2:])


@lru_cache(maxsize=64)
def kept_space(template: ModuleType, workload: ConvWorkload, target: str) -> Space[Any]:
    """A template's space, to look up what is legal in it: that of a sparse kernel takes up to a second to make."""
    space: Space[Any] = template.space(workload, resolve_target(target))
    return space
