"""Axes of a GPU's kernel that are one: memory has them one behind the other, whatever is read and stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.sym import Analyzer

from tvmconv.compute.statements import index_variable
from tvmconv.compute.substitution import substitute

from ..stages import Stage, flat_index, loads_in, step_of, variables_in, with_loads
from .plan import Axes, Domain, size_of, split_index


def with_joined_axes(domain: Domain, stages: list[Stage]) -> Domain:
    """Return the domain with one axis in the place of those that memory has one behind the other.

    TVM simplifies the place in memory of an element by its number if there are few axes.

    Before: rows `n, c, h, w` for `y[n, c, h, w] = x[n, c, h, w] * s[c]`. After: rows `n, c, hw`.
    """
    analyzer = Analyzer()
    for axes in (domain.rows, *domain.columns):
        for var, extent in axes.items():
            analyzer.bind(var, Range(0, extent))
    accesses: list[Expr] = []
    bare: set[Var] = variables_in(domain.tests)
    for stage, known in zip(stages, domain.places, strict=True):
        flat = [flat_index(load.source, load.indices) for value in stage.values for load, _ in loads_in(value)]
        flat += [flat_index(target, stage.indices) for target in stage.targets]
        accesses += [analyzer.simplify(substitute(place, known)) for place in flat]
        others = [with_loads(value, lambda load: tirx.const(0, load.ty.dtype)) for value in stage.values]
        bare |= variables_in(substitute(other, known) for other in others)

    def are_one(first: Var, second: Var, extent: Expr) -> bool:
        if first in bare or second in bare:
            return False
        steps = [[step_of(place, axis, analyzer) for axis in (first, second)] for place in accesses]
        return all(analyzer.can_prove_equal(outer, inner * extent) for outer, inner in steps)

    rows, whole = _joined(domain.rows, are_one)
    places = [dict(each) for each in domain.places]
    columns: list[Axes] = []
    for number, axes in enumerate(domain.columns):
        joined, parts = _joined(axes, are_one)
        columns.append(joined)
        inside = {**whole, **parts}
        places[number] = {axis: substitute(place, inside) for axis, place in places[number].items()} | inside
    return replace(domain, rows=rows, columns=columns, places=places)


def _joined(axes: Axes, are_one: Callable[[Var, Var, Expr], bool]) -> tuple[dict[Var, Expr], dict[Var, Expr]]:
    """Return axes with one for each run of those that are one, and the axes that are no more in terms of these."""

    def put(runs: list[dict[Var, Expr]], axis: Var) -> list[dict[Var, Expr]]:
        last = list(runs[-1])[-1] if runs else None
        if last is not None and are_one(last, axis, axes[axis]):
            return [*runs[:-1], {**runs[-1], axis: axes[axis]}]
        return [*runs, {axis: axes[axis]}]

    found: dict[Var, Expr] = {}
    places: dict[Var, Expr] = {}
    for run in reduce(put, axes, list[dict[Var, Expr]]()):
        if len(run) == 1:
            found.update(run)
            continue
        var = index_variable("_".join(axis.name for axis in run))
        found[var] = size_of(run)
        places.update(split_index(var, run))
    return found, places
