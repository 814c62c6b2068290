"""Windows that slide: a thread loads what neighbouring ones share once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ...substitution import substitute
from ..stages import Stage, loads_in, stride, variables_in, with_loads
from .columns import Columns
from .plan import INDEX, Domain, Sliding, assumed, index_variable, loop, sequence, size_of, split_index

PATCH, VECTORS = 64, 24
"""The most elements that a thread loads for its windows, and the most vectors, which are of 16 bytes."""

OUTPUTS = (4, 2)
"""The numbers of neighbouring windows that a thread may have."""

LANES = (8, 4, 7, 6, 5, 3, 2)
"""The numbers of neighbouring threads with windows side by side: with vectors of 16 bytes a line of the cache, or half
of it, or as many as there may be."""


def sliding_of(stages: list[Stage], domain: Domain, busy: int, vector: int) -> Sliding | None:
    """Return how windows slide, if neighbouring ones share elements and there are enough of them for `busy` threads.

    They are those along the last axis, or along the last but one where windows are side by side along that, in vectors.
    """
    stage = stages[0]
    if not stage.reduced or not stage.outer or len(stage.values) != 1 or len(stages) > 2:
        return None
    inner, (value,) = list(stage.reduced)[-1], stage.values
    rows = list(domain.rows)
    loads = [load for load, _ in loads_in(value) if inner in variables_in(load.indices)]
    if len(loads) != 1 or not all(isinstance(extent, tirx.IntImm) for extent in stage.reduced.values()):
        return None
    side = rows[-1] if are_side_by_side(stages) else None
    lanes = 1 if side is None else vector
    if side is not None and (lanes == 1 or len(rows) < 2 or not _is_multiple(domain.rows[side], lanes)):
        return None
    output = list(stage.outer)[-1 if side is None else -2]
    row = domain.places[0].get(output, output)
    if not row.same_as(rows[-1 if side is None else -2]):
        return None
    steps = [stride(loads[0], axis) for axis in (output, inner)]
    if not all(isinstance(step, tirx.IntImm) for step in steps):
        return None
    (distance, one), size = map(int, steps), int(stage.reduced[inner])
    step, rest = divmod(distance, one) if one > 0 else (0, 0)
    analyzer = Analyzer()
    moved = analyzer.simplify(substitute(value, {output: output + 1, inner: inner - step}))
    in_a_row = one == 1 if side is None else rest == 0
    if not in_a_row or not 0 < step < size or not tvm_ffi.structural_equal(moved, analyzer.simplify(value)):
        return None
    for outputs in OUTPUTS:
        elements = int(size_of(stage.reduced)) // size * ((outputs - 1) * step + size)
        if elements <= (PATCH if side is None else VECTORS) and assumed(size_of(stage.outer)) >= busy * outputs * lanes:
            return Sliding(row, inner, step, outputs, side, lanes)
    return None


def are_side_by_side(stages: list[Stage]) -> bool:
    """Return whether memory has windows side by side, such as those of neighbouring channels."""
    outer, inner = list(stages[0].outer), list(stages[0].reduced)
    loads = [
        load for value in stages[0].values for load, _ in loads_in(value) if inner[-1] in variables_in(load.indices)
    ]
    indices = [index for load in loads for index in load.indices if {*outer[-1:]} & variables_in([index])]
    return bool(indices) and not any(variables_in([index]) & set(inner) for index in indices)


def in_vectors(domain: Domain, stages: list[Stage], sliding: Sliding) -> Domain:
    """Return the domain with rows in whole vectors along the axis where windows slide, and tests of elements.

    Where windows are side by side, a vector has some of these for each of its windows along the axis. Then a block has
    few windows side by side and neighbours along the axes before, with which they share elements.

    Before: rows (n, h, w, c). After: rows (n, c / 64, h, w / 4, 8, 4, 8), with vectors of 4 times 8 elements.
    """
    extent, size = domain.rows[sliding.row], sliding.outputs
    ragged = [] if _is_multiple(extent, size) else [sliding.row < extent]
    if sliding.side is None:
        return replace(domain, rows={**domain.rows, sliding.row: tirx.ceildiv(extent, size) * size}, ragged=ragged)
    vectors = tirx.floordiv(domain.rows[sliding.side], sliding.lanes)
    few = next((few for few in LANES if _is_multiple(vectors, few)), 1)
    far, group, lane, output, element = map(index_variable, ("far", "group", "lane", "output", "element"))
    whole = {sliding.row: group * size + output, sliding.side: (far * few + lane) * sliding.lanes + element}
    *before, _, _ = domain.rows
    slid = [axis for axis in before if axis in _slid(domain, stages)]
    parts = {
        **{axis: domain.rows[axis] for axis in before if axis not in slid},
        far: tirx.floordiv(vectors, few),
        **{axis: domain.rows[axis] for axis in slid},
        group: tirx.ceildiv(extent, size),
        lane: few,
        output: size,
        element: sliding.lanes,
    }
    rows = {axis: tirx.const(each, INDEX) if isinstance(each, int) else each for axis, each in parts.items()}
    places = [{axis: substitute(place, whole) for axis, place in each.items()} for each in domain.places]
    return replace(domain, rows=rows, places=[*places[:-1], {**places[-1], **whole}], ragged=ragged)


def _is_multiple(extent: Expr, size: int) -> bool:
    return bool(Analyzer().can_prove_equal(tirx.floormod(extent, size), 0))


def _slid(domain: Domain, stages: list[Stage]) -> set[Var]:
    """Return the axes of rows along which windows slide."""
    stage = stages[0]
    loads = [load for value in stage.values for load, _ in loads_in(value)]
    indices = [index for load in loads for index in load.indices if variables_in([index]) & set(stage.reduced)]
    return variables_in(substitute(index, domain.places[0]) for index in indices)


def reduced_by_sliding(columns: Columns, sliding: Sliding, register: Any, dtype: str) -> list[tirx.Stmt]:
    """Return the statements that reduce the windows of a thread, which loads what they share once.

    Before: `for r, s: y[w] = max(y[w], x[h + r, w + s])`, for four outputs.
    After: `for i in 6: part = max(x[h, w + i], x[h + 1, w + i], ...); for j with i - j in s: y[j] = max(y[j], part)`.
    """
    kernel, stage, (value,), (join,) = columns.kernel, columns.stage, columns.stage.values, columns.stage.joins
    others = {axis: extent for axis, extent in stage.reduced.items() if axis is not sliding.inner}
    size, across, lanes = int(stage.reduced[sliding.inner]), int(size_of(others)), sliding.lanes
    width = (sliding.outputs - 1) * sliding.step + size
    patch, element = columns.in_vectors(lanes, across * width), kernel.element
    first = split_index(kernel.group * columns.plan.vector + element, kernel.domain.rows)
    line, place = tirx.floordiv(kernel.step, width), tirx.floormod(kernel.step, width)
    first = {**first, **split_index(line, others), sliding.inner: place}
    places = kernel.domain.places[columns.number]
    patch.values = {**first, **{axis: substitute(each, first) for axis, each in places.items()}}

    def inside(load: TensorLoad) -> Expr:
        """Return a load of what is there also for windows of rows that are not."""
        indices = [
            tirx.min(index, extent - 1) if sliding.inner in variables_in([index]) else index
            for index, extent in zip(load.indices, load.source.ty.shape, strict=True)
        ]
        return load.source.vload(indices)

    term = patch.value(with_loads(value, inside) if kernel.domain.ragged else value).astype(dtype)
    part, number = kernel.registers("part", lanes, dtype), index_variable("number")
    steps = [loop(kernel.step, across * width, sequence(copies))] if (copies := patch.copies()) else []
    for each in range(width):
        begin = tirx.BufferStore(part, substitute(term, {kernel.step: tirx.const(each, INDEX)}), [element])
        more = join(part[element], substitute(term, {kernel.step: (number + 1) * width + each}))
        steps.append(loop(element, lanes, begin))
        if across > 1:
            steps.append(loop(number, across - 1, loop(element, lanes, tirx.BufferStore(part, more, [element]))))
        for output in range(sliding.outputs):
            if 0 <= each - output * sliding.step < size:
                index, is_first = output * lanes + element, each == output * sliding.step
                joined = part[element] if is_first else join(register[index], part[element])
                update = tirx.BufferStore(register, joined, [index])
                steps.append(loop(element, lanes, update))
    return steps
