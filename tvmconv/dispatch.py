"""Which schedule and which configuration a workload gets on a target, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgumentError
from .workload import ConvWorkload

if TYPE_CHECKING:
    import tvm

    from .schedules.space import Space

FOLDERS = {"cuda": "cuda", "llvm": "cpu"}
"""Folder of `schedules/` for each kind of target."""

ALGORITHMS = {"cuda": ("direct", "im2win"), "llvm": ("direct", "im2win", "pointwise")}
"""The templates for convolutions whose channels meet."""


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

    The first is the one that is taken where nothing has been measured: that of the least estimate, if they have any.
    """
    kind = target.kind.name
    known = algorithms_for(workload, kind)
    if not known:
        raise InvalidArgumentError("layout", workload.layouts, f"NCHW, on {kind}")
    if algorithm not in ("auto", *known):
        raise InvalidArgumentError("algorithm", algorithm, f"auto or {' or '.join(known)}, for {workload} on {kind}")
    templates = [template_named(f"{FOLDERS[kind]}/{name}") for name in known if algorithm in ("auto", name)]
    return tuple(sorted(templates, key=lambda template: estimated_cycles(template, workload, target)))


def estimated_cycles(template: ModuleType, workload: ConvWorkload, target: tvm.target.Target) -> float:
    """Cycles that a core should take by a template's default configuration; infinite for one without an estimate."""
    return float(template.estimate(workload, target)) if hasattr(template, "estimate") else inf


def algorithms_for(workload: ConvWorkload, kind: str) -> tuple[str, ...]:
    """The names of the templates that take a workload on a kind of target."""
    names = ("depthwise",) if workload.is_depthwise else ALGORITHMS[kind]
    templates = {name: template_named(f"{FOLDERS[kind]}/{name}") for name in names}

    def supports(template: ModuleType) -> bool:
        return bool(template.supports(workload)) if hasattr(template, "supports") else workload.is_in_nchw

    return tuple(name for name, each in templates.items() if supports(each))


def template_for(workload: ConvWorkload, target: tvm.target.Target, algorithm: str = "auto") -> ModuleType:
    """The first of `templates_for`."""
    return templates_for(workload, target, algorithm)[0]


def sparse_template(target: tvm.target.Target) -> ModuleType:
    """The module of `tvmconv.schedules` that schedules convolutions whose weight is compiled in."""
    return template_named(f"{FOLDERS[target.kind.name]}/sparse")


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
            return found.selection
        return Selection(templates[0], templates[0].default_config(workload, target), "default configuration")
    return _given(config, workload, target, templates)


def select_sparse(workload: ConvWorkload, target: tvm.target.Target, sparsity: float, config: Any = None) -> Selection:
    """The same for a workload whose weight, with this share of zeros, is compiled in.

    Records are those of shares near to it: see `autotvm.history.serves`.
    """
    from .autotvm.history import tuned

    if not workload.is_in_nchw:
        raise InvalidArgumentError("layout", workload.layouts, "NCHW, with a sparse weight")
    template, density = sparse_template(target), 1 - sparsity
    if config is not None:
        return _given(config, workload, target, [template])
    if found := tuned(workload, target, [template], sparsity):
        return found.selection
    reason = f"default configuration for {100 * density:.3g}% non-zeros"
    return Selection(template, template.default_config(workload, target, density), reason)


@lru_cache(maxsize=64)
def kept_space(template: ModuleType, workload: ConvWorkload, target: str) -> Space[Any]:
    """A template's space, to look up what is legal in it: that of a sparse kernel takes up to a second to make."""
    from .targets import resolve_target

    space: Space[Any] = template.space(workload, resolve_target(target))
    return space


def _given(
    config: Any, workload: ConvWorkload, target: tvm.target.Target, templates: Sequence[ModuleType]
) -> Selection:
    template = next((each for each in templates if each.Config is type(config)), None)
    if template is None:
        raise InvalidArgumentError("config", config, " or ".join(f"a {each.__name__}.Config" for each in templates))
    if broken := kept_space(template, workload, str(target)).violated(config):
        raise InvalidArgumentError("config", config, f"one that meets the constraints {', '.join(broken)}")
    return Selection(template, config, "configuration given by the caller")
