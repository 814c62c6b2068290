"""Kernels for TVM's operators between the convolutions on a GPU, each of which is to run about as fast as a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.approximations import approximated, is_approximated, stepped_in, with_reciprocals
from tvmconv.compute.statements import index_variable
from tvmconv.compute.substitution import substitute
from tvmconv.lowering import is_scheduled, with_nonnegative_dividends
from tvmconv.problem.dtypes import NARROW
from tvmconv.targets.devices import Gpu, gpu_of

from ..cpu.spreading import has_work
from ..empty_tensors import without_loops
from ..stages import (
    Stage,
    flat_index,
    is_contraction,
    loads_in,
    loads_stored_offset,
    stages_of,
    step_of,
    variables_in,
    with_loads,
)
from .choice import plan_of
from .choices import with_casts_of_choices, with_warps_by_part
from .domain import domain_of, with_split_axes
from .loops import KernelLoops
from .plan import Axes, Domain, size_of, split_index
from .windows import in_vectors


def spread_over_gpu(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module, which is lowered and fused, with its functions scheduled for a GPU where they can be.

    A function becomes one kernel: reductions, whose rows are shared by some threads, and maps of their results, with
    all element-by-element operators inside. Other functions are left to TVM's own rules.

    Before: `y = R.nn.softmax(x)`, lowered to `for n, k: max`, `for n, k: sum`, `for n, k: y`.
    After: `y = R.call_tir(softmax, (x,))` with `for n in blocks: for k in threads: load; max, exchange, sum, ...`.
    """
    mod = mod.clone()
    for var, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            continue
        if has_work(func):
            mod[var] = _spread(func, gpu_of(target)) or func
        elif any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in func.params[-1].ty.shape):
            mod[var] = without_loops(func)
    return mod


def _spread(func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc | None:
    """Return the function as a kernel; None for one that is left to TVM."""
    func = with_nonnegative_dividends(func)
    stages = stages_of(func)
    if stages is None or any(map(is_contraction, stages)) or not _is_single(func, stages) or is_view(stages):
        return None
    stages = [replace(stage, values=list(map(with_casts_of_choices, stage.values))) for stage in stages]
    if len(stages) == 1:
        stages = [with_split_axes(stages[0])]
    domain = domain_of(stages)
    if domain is None:
        return None
    types = _types_in_memory(stages)
    # The largest float16 number is far from the largest one of float32; that of bfloat16 is not.
    if types <= {*NARROW} and not _needs_exact_values(stages):
        change = approximated if types == {"float16"} else with_reciprocals
        stages = [replace(stage, values=list(map(change, stage.values))) for stage in stages]
    plan = plan_of(stages, domain, gpu)
    if plan.sliding is None:
        domain = with_warps_by_part(_with_joined_axes(domain, stages), stages, plan)
    else:
        domain = in_vectors(domain, stages, plan.sliding)
    return KernelLoops(func, stages, domain, plan).scheduled()


def is_view(stages: list[Stage]) -> bool:
    """Return whether a function copies elements in the order of memory: TVM makes a view of its operand."""
    if len(stages) != 1 or len(stages[0].values) != 1 or stages[0].is_reduction:
        return False
    (value,) = stages[0].values
    return isinstance(value, TensorLoad) and loads_stored_offset(value, stages[0])


def _is_single(func: tirx.PrimFunc, stages: list[Stage]) -> bool:
    """Return whether just the last stage stores to parameters of the function, and no stage reads these."""
    *inner, last = stages
    read = [load.source for stage in stages for value in stage.values for load, _ in loads_in(value)]
    stored = [target for stage in inner for target in stage.targets]
    is_last = all(_is_in(target, func.params) and not _is_in(target, read) for target in last.targets)
    return is_last and not any(_is_in(target, func.params) for target in stored)


def _needs_exact_values(stages: list[Stage]) -> bool:
    """Return whether a value computed from a quotient or an exponential is rounded to integers or compared."""
    changed = list[Any]()

    def is_changed(value: Expr) -> bool:
        return is_approximated(value) or any(_is_in(load.source, changed) for load, _ in loads_in(value))

    for stage in stages:
        if any(is_changed(each) for value in stage.values for each in stepped_in(value)):
            return True
        changed += [target for target, value in zip(stage.targets, stage.values, strict=True) if is_changed(value)]
    return False


def _types_in_memory(stages: list[Stage]) -> set[str]:
    """Return the types of the tensors that the stages read from memory and store there."""
    inner = [target for stage in stages[:-1] for target in stage.targets]
    loads = [load.source for stage in stages for value in stage.values for load, _ in loads_in(value)]
    buffers = [*stages[-1].targets, *(source for source in loads if not _is_in(source, inner))]
    return {str(each.ty.dtype) for each in buffers}


def _is_in(buffer: Any, buffers: Iterable[Any]) -> bool:
    return any(buffer.same_as(each) for each in buffers)


def _with_joined_axes(domain: Domain, stages: list[Stage]) -> Domain:
    """Return the domain with axes joined that are contiguous in all tensors.

    If there are few axes, TVM can simplify the offset of an element in memory, given its flat index.

    Before: rows `n, c, h, w` for `y[n, c, h, w] = x[n, c, h, w] * s[c]`. After: rows `n, c, hw`.
    """
    analyzer = Analyzer()
    for axes in (domain.rows, *domain.columns):
        for var, extent in axes.items():
            analyzer.bind(var, Range(0, extent))
    accesses: list[Expr] = []
    bare: set[Var] = variables_in(domain.tests)
    for stage, known in zip(stages, domain.axis_values, strict=True):
        flat = [flat_index(load.source, load.indices) for value in stage.values for load, _ in loads_in(value)]
        flat += [flat_index(target, stage.indices) for target in stage.targets]
        accesses += [analyzer.simplify(substitute(offset, known)) for offset in flat]
        others = [with_loads(value, lambda load: tirx.const(0, load.ty.dtype)) for value in stage.values]
        bare |= variables_in(substitute(other, known) for other in others)

    def are_one(first: Var, second: Var, extent: Expr) -> bool:
        if first in bare or second in bare:
            return False
        steps = [[step_of(offset, axis, analyzer) for axis in (first, second)] for offset in accesses]
        return all(analyzer.can_prove_equal(outer, inner * extent) for outer, inner in steps)

    rows, whole = _joined(domain.rows, are_one)
    axis_values = [dict(each) for each in domain.axis_values]
    columns: list[Axes] = []
    for number, axes in enumerate(domain.columns):
        joined, parts = _joined(axes, are_one)
        columns.append(joined)
        inside = {**whole, **parts}
        axis_values[number] = {axis: substitute(value, inside) for axis, value in axis_values[number].items()} | inside
    return replace(domain, rows=rows, columns=columns, axis_values=axis_values)


def _joined(axes: Axes, are_one: Callable[[Var, Var, Expr], bool]) -> tuple[dict[Var, Expr], dict[Var, Expr]]:
    """Return axes with each run of joined ones as one axis, and the old axes of a run in terms of the new one."""

    def put(runs: list[dict[Var, Expr]], axis: Var) -> list[dict[Var, Expr]]:
        last = list(runs[-1])[-1] if runs else None
        if last is not None and are_one(last, axis, axes[axis]):
            return [*runs[:-1], {**runs[-1], axis: axes[axis]}]
        return [*runs, {axis: axes[axis]}]

    found: dict[Var, Expr] = {}
    axis_values: dict[Var, Expr] = {}
    for run in reduce(put, axes, list[dict[Var, Expr]]()):
        if len(run) == 1:
            found.update(run)
            continue
        var = index_variable("_".join(axis.name for axis in run))
        found[var] = size_of(run)
        axis_values.update(split_index(var, run))
    return found, axis_values
