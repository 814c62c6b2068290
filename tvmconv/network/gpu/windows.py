"""Windows that slide along what memory has in a row: a thread loads what neighbouring ones share once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ...substitution import substitute
from ...workload import MAX_ELEMENTS
from ..stages import Stage, flat_index, loads_in, stride, variables_in, with_loads
from .columns import Columns
from .plan import INDEX, Domain, Sliding, assumed, index_variable, loop, size_of, split_index

PATCH = 64
"""The most elements that a thread loads for its windows."""

OUTPUTS = (4, 2)
"""The numbers of neighbouring windows that a thread may have."""


def sliding_of(stages: list[Stage], domain: Domain, busy: int) -> Sliding | None:
    """Return how windows slide, if neighbouring ones share elements and there are enough of them for `busy` threads."""
    stage = stages[0]
    if not stage.reduced or not stage.outer or len(stage.values) != 1 or len(stages) > 2:
        return None
    output, inner, (value,) = list(stage.outer)[-1], list(stage.reduced)[-1], stage.values
    row = domain.places[0].get(output, output)
    if not row.same_as(list(domain.rows)[-1]):
        return None
    if not all(isinstance(extent, tirx.IntImm) for extent in stage.reduced.values()):
        return None
    steps = [
        (stride(load, output), stride(load, inner))
        for load, _ in loads_in(value)
        if inner in variables_in(load.indices)
    ]
    if len(steps) != 1 or not all(isinstance(step, tirx.IntImm) for step in steps[0]):
        return None
    (step, one), size = map(int, steps[0]), int(stage.reduced[inner])
    analyzer = Analyzer()
    moved = analyzer.simplify(substitute(value, {output: output + 1, inner: inner - step}))
    if one != 1 or not 0 < step < size or not tvm_ffi.structural_equal(moved, analyzer.simplify(value)):
        return None
    for outputs in OUTPUTS:
        elements = int(size_of(stage.reduced)) // size * ((outputs - 1) * step + size)
        if elements <= PATCH and assumed(size_of(stage.outer)) >= busy * outputs:
            return Sliding(row, inner, step, outputs)
    return None


def in_vectors(domain: Domain, sliding: Sliding) -> Domain:
    """Return the domain with rows in whole vectors along the axis where windows slide, and tests of elements."""
    extent, size = domain.rows[sliding.row], sliding.outputs
    if Analyzer().can_prove_equal(tirx.floormod(extent, size), 0):
        return domain
    rows = {**domain.rows, sliding.row: tirx.ceildiv(extent, size) * size}
    return replace(domain, rows=rows, ragged=[sliding.row < extent])


def reduced_by_sliding(columns: Columns, sliding: Sliding, register: Any, dtype: str) -> list[tirx.Stmt]:
    """Return the statements that reduce the windows of a thread, which first loads all that they have.

    Before: `for r, s: y[w] = max(y[w], x[h + r, w + s])`, for four outputs.
    After: `for r, i in (3, 6): patch[r, i] = x[h + r, w + i]`, and `for r, s, j: y[j] = max(y[j], patch[r, j + s])`.
    """
    kernel, stage, (value,), (join,) = columns.kernel, columns.stage, columns.stage.values, columns.stage.joins
    others = {axis: extent for axis, extent in stage.reduced.items() if axis is not sliding.inner}
    size, across = int(stage.reduced[sliding.inner]), int(size_of(others))
    width = (sliding.outputs - 1) * sliding.step + size
    line, place = index_variable("line"), index_variable("place")
    analyzer = Analyzer()
    ranges = {kernel.group: kernel.groups, line: across, place: width}
    for var, extent in (*ranges.items(), *((each, MAX_ELEMENTS + 1) for each in kernel.sizes)):
        analyzer.bind(var, Range(1 if var in kernel.sizes else 0, extent))
    first = split_index(kernel.group * sliding.outputs, kernel.domain.rows)
    first = {**first, **split_index(line, others), sliding.inner: place}
    places = kernel.domain.places[columns.number]
    found = {**first, **{axis: substitute(each, first) for axis, each in places.items()}}

    def load(each: TensorLoad) -> Expr:
        indices = list(each.indices)
        if kernel.domain.ragged:  # windows of rows that are not there may go beyond what is loaded from
            indices = [tirx.min(index, extent - 1) for index, extent in zip(indices, each.source.ty.shape, strict=True)]
        flat = analyzer.simplify(flat_index(each.source, indices))
        return each.source.vload([*[tirx.const(0, INDEX)] * (len(indices) - 1), flat])

    term = with_loads(substitute(value, found), load)
    patch = kernel.registers("patch", across * width, dtype)
    fill = tirx.BufferStore(patch, term.astype(dtype), [line * width + place])
    element = kernel.element
    shared = patch[line * width + element * sliding.step + place]
    update = tirx.BufferStore(register, join(register[element], shared), [element])
    return [
        loop(line, across, loop(place, width, fill)),
        loop(line, across, loop(place, size, loop(element, sliding.outputs, update))),
    ]
