"""The templates: by name, and by the problems and targets that they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from tvmconv.problem import DIRECTIONS, FORWARD, Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.fused import FusedWorkload
from tvmconv.schedules.space import Space
from tvmconv.schedules.template import Fused, SparseTemplate, Template
from tvmconv.support.store import store
from tvmconv.targets import BACKENDS, arch_of, backend_of, computes_with, resolve_target, sources

from . import call

if TYPE_CHECKING:
    import tvm

FOLDERS: dict[str, ModuleType] = {
    each.templates: import_module(f"tvmconv.schedules.{each.templates}") for each in BACKENDS.values()
}
"""The packages of templates, by their folders: `MODULES` of each lists its algorithms."""

SPARSE: dict[str, SparseTemplate] = {name: folder.sparse.template for name, folder in FOLDERS.items()}
"""The template for weights that are compiled in, by folder."""

TEMPLATES: dict[str, Template] = {
    f"{name}/{algorithm}": getattr(folder, algorithm).template
    for name, folder in FOLDERS.items()
    for algorithm in folder.MODULES
}
"""The templates that tvmconv has itself, by name."""

_registered = dict(TEMPLATES)

changes = 0
"""The number of changes of the registered templates: results that depend on templates are cached by it."""


def register(name: str, template: Template) -> None:
    """Offer a template for the problems that it takes, to dispatch, the tuner, the benchmarks and the CLI.

    The name is a folder of `schedules/` and an algorithm, such as "cpu/winograd"; a template of one's own takes the
    place of one with the same name. Raises `InvalidArgumentError` for a name of another form, and for one of tvmconv's
    own, and for a template that lacks a name of `Template` or whose `Config` another template has.
    """
    folder, _, algorithm = name.partition("/")
    folders = [backend.templates for backend in BACKENDS.values()]
    if folder not in folders or not algorithm.isidentifier() or algorithm == "auto":
        raise InvalidArgumentError("name", name, f"{' or '.join(folders)}, a slash, and an algorithm's name")
    if name in TEMPLATES:
        raise InvalidArgumentError("name", name, "one that is not tvmconv's own")
    if not isinstance(template, Template):
        names = (each for each in (*Template.__annotations__, *vars(Template)) if not each.startswith("_"))
        missing = [each for each in names if not hasattr(template, each)]
        raise InvalidArgumentError("template", template, f"an object that has {', '.join(missing)}, too")
    for other, known in _registered.items():
        if other != name and known.Config is template.Config:
            raise InvalidArgumentError("template.Config", template.Config, f"a class of its own: it is that of {other}")
    _changed()
    _registered[name] = template


def unregister(name: str) -> None:
    """Take back a template that was registered."""
    if name in TEMPLATES or name not in _registered:
        raise InvalidArgumentError("name", name, "one that was registered")
    _changed()
    del _registered[name]


def _changed() -> None:
    global changes
    changes += 1


def dense_algorithms(directions: Sequence[str] = DIRECTIONS) -> tuple[str, ...]:
    """Return the algorithms of convolutions whose weights are operands, for any kind of target, as registered.

    Each takes convolutions, or gradients, of one of the directions.
    """
    dense = (
        name
        for name, template in _registered.items()
        if template not in SPARSE.values()
        and not _is_fused(template)
        and not set(directions).isdisjoint(directions_of(template))
    )
    return tuple(dict.fromkeys(map(algorithm_of, dense)))


def algorithms_on(target: tvm.target.Target) -> tuple[str, ...]:
    """Return the algorithms of convolutions with a template for a kind of target."""
    return tuple(algorithm for algorithm, each in _templates_on(target).items() if not _is_fused(each))


def _is_fused(template: Template) -> bool:
    """Return whether a template is for several layers in one kernel, such as attention."""
    return isinstance(template.LAYOUTS, Fused)


def is_for_fused(name: str) -> bool:
    """Return whether a name is that of a template for several layers in one kernel."""
    return name in _registered and _is_fused(_registered[name])


def fused_row(workload: FusedWorkload) -> Fused:
    """Return the `Fused` of the template for a kind of workload of several layers."""
    rows = (template.LAYOUTS for template in _registered.values() if isinstance(template.LAYOUTS, Fused))
    return next(row for row in rows if isinstance(workload, row.kind))


def algorithms_for(problem: Problem, target: tvm.target.Target) -> tuple[str, ...]:
    """Return the algorithms with a template that takes a problem on a target."""
    return tuple(algorithm for algorithm, why in _obstacles(problem, target).items() if why is None)


def _obstacles(problem: Problem, target: tvm.target.Target) -> dict[str, str | None]:
    """Return by algorithm why a target's templates do not take a problem; None for those that do."""
    return {algorithm: _obstacle(each, problem, target) for algorithm, each in _templates_on(target).items()}


def _obstacle(template: Template, problem: Problem, target: tvm.target.Target) -> str | None:
    if problem.direction not in (directions := directions_of(template)):
        return f"computes {' and '.join(directions)}, not {problem.direction}"
    for size in problem.open_sizes:
        if size not in template.OPEN_SIZES:
            return f"takes no {size} that is left open"
    return template.LAYOUTS.obstacle(problem.workload) or template.obstacle(problem, target)


def directions_of(template: Template) -> tuple[str, ...]:
    """Return the directions of problems that a template takes."""
    directions: tuple[str, ...] = getattr(template, "DIRECTIONS", (FORWARD,))
    return directions


def _templates_on(target: tvm.target.Target) -> dict[str, Template]:
    """Return a target's templates by their algorithms."""
    folder = f"{backend_of(target).templates}/"
    return {name.removeprefix(folder): each for name, each in _registered.items() if name.startswith(folder)}


def templates_for(problem: Problem, target: tvm.target.Target, algorithm: str = "auto") -> tuple[Template, ...]:
    """Return the templates that take a problem on a target: all, or an algorithm's.

    Raises `InvalidArgumentError` where there is none, with the first condition that fails: of the algorithm's template,
    or of those that have the layouts, or of all for a problem in NCHW.
    """
    _require_dtype(problem, target)
    templates, obstacles, kind = _templates_on(target), _obstacles(problem, target), target.kind.name
    known = [each for each, why in obstacles.items() if why is None]
    if not known:
        in_direction = [each for each in templates if problem.direction in directions_of(templates[each])]
        has_layouts = [each for each in in_direction if templates[each].LAYOUTS.obstacle(problem.workload) is None]
        fitting = has_layouts or (in_direction if problem.workload.is_in_nchw else [])
        raise _refused(problem, kind, [_explained(templates[each], obstacles[each]) for each in fitting])
    if algorithm not in ("auto", *known):
        why = f": {_explained(templates[algorithm], obstacles[algorithm])}" if algorithm in templates else ""
        expected = f"auto or {' or '.join(known)}, for {problem} on {kind}{why}"
        raise InvalidArgumentError("algorithm", algorithm, expected)
    return tuple(templates[each] for each in (known if algorithm == "auto" else [algorithm]))


def _refused(problem: Problem, kind: str, reasons: Sequence[str]) -> InvalidArgumentError:
    """Return the error of a problem that no template takes on a kind of target."""
    why = "; ".join(reasons)
    if problem.workload.is_in_nchw:
        return InvalidArgumentError("workload", str(problem), f"one with a kernel on {kind}: {why}")
    plain = msgspec.structs.replace(problem, workload=problem.workload.in_nchw())
    expected = f"NCHW to NCHW, as the others have no kernel for {plain} on {kind}"
    return InvalidArgumentError("layout", problem.workload.layouts, f"{expected}: {why}" if why else expected)


def _explained(template: Template, obstacle: str | None) -> str:
    return f"{template_name(template)} {obstacle}"


def _require_dtype(problem: Problem, target: tvm.target.Target) -> None:
    """Raise `InvalidArgumentError` for a CPU or a GPU that has no kernels for the problem's dtype."""
    storage = problem.workload.storage
    if not computes_with(target, storage):
        raise InvalidArgumentError("target", arch_of(target), f"sm_{storage.cuda_arch} or later, for {storage.name}")


def template_for(problem: Problem, target: tvm.target.Target, algorithm: str = "auto") -> Template:
    """Return the template of `templates_for` with the least estimate, which is taken where nothing was measured."""
    templates = templates_for(problem, target, algorithm)
    if len(templates) == 1:
        return templates[0]
    return min(templates, key=lambda template: estimated_cycles(template, problem, str(target)))


def least_cycles(problem: Problem, target: tvm.target.Target) -> float:
    """Return the least estimate of the templates that take a problem, in clock cycles."""
    return min(estimated_cycles(template, problem, str(target)) for template in templates_for(problem, target))


def sparse_template(target: tvm.target.Target) -> SparseTemplate:
    """Return the template for weights that are compiled in."""
    return SPARSE[backend_of(target).templates]


def template_named(name: str) -> Template:
    """Return the template with a name, such as "cuda/depthwise"; raise `InvalidArgumentError` if there is none."""
    if name not in _registered:
        raise InvalidArgumentError("template", name, f"one of {', '.join(_registered)}")
    return _registered[name]


def template_name(template: Template) -> str:
    """Return the name of a template, such as "cuda/depthwise"."""
    for name, each in _registered.items():
        if each is template:
            return name
    raise InvalidArgumentError("template", template, "one that is registered")


def algorithm_of(name: str) -> str:
    """Return the algorithm of the template with a name: "depthwise" of "cuda/depthwise"."""
    return name.partition("/")[2]


def knob_name(template: str, name: str) -> str:
    """Return the present name of a knob of a template, if the name is a former one in the template's `FORMER_NAMES`."""
    if template not in _registered:
        return name
    present: Mapping[str, str] = getattr(_registered[template].Config, "FORMER_NAMES", {})
    return present.get(name, name)


def to_message(name: str) -> str:
    """Return a message for `template_from` in another process, which knows tvmconv's own templates by their names."""
    template = template_named(name)
    return name if name in TEMPLATES else call.to_message(name, template)


def template_from(text: str) -> Template:
    """Return the template that `to_message` wrote, which is registered from then on."""
    if not text.startswith("{"):
        return template_named(text)
    name, template = call.from_message(text)
    if _registered.get(name) is not template:
        register(name, template)
    return template_named(name)


@lru_cache(maxsize=1024)
def default_config(template: Template, problem: Problem, target: str) -> Any:
    """Return a template's default configuration, made once: a model of a GPU tries thousands for it."""
    resolved = resolve_target(target)
    return _stored_answer("default", template, problem, resolved, template.Config, template.default_config)


@lru_cache(maxsize=1024)
def estimated_cycles(template: Template, problem: Problem, target: str) -> float:
    """Return the clock cycles that a template's default configuration should take."""

    def cycles(problem: Problem, resolved: tvm.target.Target) -> str:
        return float(template.estimate(problem, default_config(template, problem, target), resolved)).hex()

    return float.fromhex(_stored_answer("cycles", template, problem, resolve_target(target), str, cycles))


def _stored_answer(
    what: str,
    template: Template,
    problem: Problem,
    target: tvm.target.Target,
    kind: type[Any],
    make: Callable[[Problem, tvm.target.Target], Any],
) -> Any:
    """Return what a template says of a problem; the store on disk keeps it if the template is one of tvmconv's own.

    Models of GPUs try thousands of configurations for each.
    """
    name = template_name(template) if backend_of(target).keeps_kernels else ""
    if TEMPLATES.get(name) is not template or (digest := sources.digest()) is None:
        return make(problem, target)
    question = f"{what} {name} {problem.to_json()}"
    key = f"{sha256(repr((digest, str(target), question)).encode()).hexdigest()}.choice"
    if (content := store.get(key)) is not None:
        return msgspec.json.decode(content, type=kind)
    answer = make(problem, target)
    store.put(key, msgspec.json.encode(answer))
    return answer


@lru_cache(maxsize=64)
def cached_space(template: Template, problem: Problem, target: str) -> Space[Any]:
    """Return a template's space, kept for look-ups: that of a sparse kernel takes up to a second to make."""
    return template.space(problem, resolve_target(target))
