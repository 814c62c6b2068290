"""Windows that slide: a thread has several neighbouring windows, and loads the elements that they share once."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import inf
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.statements import INDEX, index_variable, loop, sequence
from tvmconv.compute.substitution import substitute

from ..stages import Join, Stage, loads_in, stride, variables_in, with_loads
from .columns import Columns
from .plan import Domain, Slide, Sliding, assumed, size_of, split_index

PATCH, VECTORS = 64, 42
"""The most elements that a thread loads for its windows, and the most vectors, which are of 16 bytes.

Two times three windows of 5x5 have 42 vectors, which take 187 registers and are the fastest on an H100.
"""

TILES = ((2, 3), (2, 4), (2, 2), (1, 4), (1, 2))
"""The numbers of neighbouring windows that a thread may have along two axes; of tiles with equal loads, the first is
best."""

FEWER = 3
"""The number of times that such threads may be fewer than threads with a window each, since they load more at once."""

LANES = (8, 4, 7, 6, 5, 3, 2)
"""The numbers of neighbouring threads with windows side by side, by preference: with vectors of 16 bytes, 8 threads
read a line of the cache, and 4 half of it."""


def sliding_of(stages: list[Stage], domain: Domain, busy: int, vector: int) -> Sliding | None:
    """Return how windows slide, if neighbouring ones share elements and there are enough of them for `busy` threads.

    They slide along the last axis or, where windows are side by side along that in vectors, along the last but one, and
    then perhaps along the axis before as well. Of `TILES`, the one with the fewest loads in all is taken. Where
    neighbouring windows in vectors share half of their elements or less, a thread has two: more would save few loads,
    and leave fewer threads to wait for memory.
    """
    stage, rows = stages[0], list(domain.rows)
    if not stage.reduced or not stage.outer or len(stage.values) != 1 or len(stages) > 2:
        return None
    if not all(isinstance(extent, tirx.IntImm) for extent in stage.reduced.values()):
        return None
    side = rows[-1] if are_side_by_side(stages) else None
    lanes = 1 if side is None else vector
    if side is not None and (lanes == 1 or not _is_multiple(domain.rows[side], lanes)):
        return None
    across, down = (_slide(stage, domain, number, side) for number in (1, 2))
    if across is None:
        return None
    found, least = None, inf
    for lines, outputs in TILES:
        slides = [replace(across, outputs=outputs)]
        if lines > 1:
            if down is None or side is None or not down.shares_most:
                continue
            slides.insert(0, replace(down, outputs=lines))
        if side is not None and outputs > 2 and not across.shares_most:
            continue
        sliding = Sliding(slides, side, lanes)
        loads = int(size_of(sliding.shared(stage.reduced)))
        groups = {slide.row: tirx.ceildiv(domain.rows[slide.row], slide.outputs) for slide in slides}
        threads = assumed(size_of({**domain.rows, **groups})) // lanes
        if loads <= (PATCH if side is None else VECTORS) and threads * FEWER >= busy and loads * threads < least:
            found, least = sliding, loads * threads
    return found


def _slide(stage: Stage, domain: Domain, number: int, side: Var | None) -> Slide | None:
    """Return the size and step of windows along the axis -`number`, or None if windows do not overlap there.

    Axes are counted without `side`, along which windows are side by side.
    """
    outer, rows, inner = list(stage.outer), list(domain.rows), list(stage.reduced)
    if side is not None:
        outer, rows = outer[:-1], rows[:-1]
    if number > min(map(len, (outer, rows, inner))):
        return None
    output, row, axis, (value,) = outer[-number], rows[-number], inner[-number], stage.values
    loads = [load for load, _ in loads_in(value) if axis in variables_in(load.indices)]
    if len(loads) != 1 or not domain.axis_values[0].get(output, output).same_as(row):
        return None
    steps = [stride(loads[0], each) for each in (output, axis)]
    if not all(isinstance(step, tirx.IntImm) for step in steps):
        return None
    (distance, one), size = map(int, steps), int(stage.reduced[axis])
    step, rest = divmod(distance, one) if one > 0 else (0, 0)
    analyzer = Analyzer()
    shifted = analyzer.simplify(substitute(value, {output: output + 1, axis: axis - step}))
    is_contiguous = one == 1 if side is None else rest == 0
    if not is_contiguous or not 0 < step < size or not tvm_ffi.structural_equal(shifted, analyzer.simplify(value)):
        return None
    return Slide(row, axis, size, step)


def are_side_by_side(stages: list[Stage]) -> bool:
    """Return whether windows are side by side in memory, such as those of neighbouring channels in NHWC."""
    outer, inner = list(stages[0].outer), list(stages[0].reduced)
    loads = [
        load for value in stages[0].values for load, _ in loads_in(value) if inner[-1] in variables_in(load.indices)
    ]
    indices = [index for load in loads for index in load.indices if {*outer[-1:]} & variables_in([index])]
    return bool(indices) and not any(variables_in([index]) & set(inner) for index in indices)


def in_vectors(domain: Domain, stages: list[Stage], sliding: Sliding) -> Domain:
    """Return the domain with rows in whole vectors along the axes where windows slide, and tests for rows to exist.

    Where windows are side by side, a vector has `lanes` of these for each of its windows along the axes. Then a block
    has few windows side by side, and more along the axes where they slide, with which they share elements.

    Before: rows (n, h, w, c). After: rows (n, c / 64, h / 2, w / 4, 8, 2, 4, 8), with vectors of 2 times 4 times 8
    elements.
    """
    extents = {slide.row: domain.rows[slide.row] for slide in sliding.slides}
    row_tests = [
        slide.row < extents[slide.row]
        for slide in sliding.slides
        if not _is_multiple(extents[slide.row], slide.outputs)
    ]
    if sliding.side is None:
        whole = {each.row: tirx.ceildiv(extents[each.row], each.outputs) * each.outputs for each in sliding.slides}
        return replace(domain, rows={**domain.rows, **whole}, row_tests=row_tests)
    vectors = tirx.floordiv(domain.rows[sliding.side], sliding.lanes)
    few = next((few for few in LANES if _is_multiple(vectors, few)), 1)
    far, lane, element = map(index_variable, ("far", "lane", "element"))
    groups, outputs = (
        {each.row: index_variable(f"{each.row.name}_{name}") for each in sliding.slides} for name in ("group", "output")
    )
    values = {each.row: groups[each.row] * each.outputs + outputs[each.row] for each in sliding.slides}
    values[sliding.side] = (far * few + lane) * sliding.lanes + element
    outer = [axis for axis in domain.rows if axis not in values]
    slid = [axis for axis in outer if axis in _slid(domain, stages)]
    parts = {
        **{axis: domain.rows[axis] for axis in outer if axis not in slid},
        far: tirx.floordiv(vectors, few),
        **{axis: domain.rows[axis] for axis in slid},
        **{groups[each.row]: tirx.ceildiv(extents[each.row], each.outputs) for each in sliding.slides},
        lane: few,
        **{outputs[each.row]: each.outputs for each in sliding.slides},
        element: sliding.lanes,
    }
    rows = {axis: tirx.const(each, INDEX) if isinstance(each, int) else each for axis, each in parts.items()}
    *others, last = [{axis: substitute(value, values) for axis, value in each.items()} for each in domain.axis_values]
    return replace(domain, rows=rows, axis_values=[*others, {**last, **values}], row_tests=row_tests)


def _is_multiple(extent: Expr, size: int) -> bool:
    return bool(Analyzer().can_prove_equal(tirx.floormod(extent, size), 0))


def _slid(domain: Domain, stages: list[Stage]) -> set[Var]:
    """Return the axes of rows along which windows slide."""
    stage = stages[0]
    loads = [load for value in stage.values for load, _ in loads_in(value)]
    indices = [index for load in loads for index in load.indices if variables_in([index]) & set(stage.reduced)]
    return variables_in(substitute(index, domain.axis_values[0]) for index in indices)


def sliding_reduction(columns: Columns, sliding: Sliding, register: Any, dtype: str) -> list[tirx.Stmt]:
    """Return the statements that reduce the windows of a thread, which loads the elements that they share once.

    Before: `for r, s: y[h, w] = max(y[h, w], x[h + r, w + s])`, for a tile of two times three outputs.
    After, for windows of 3x3: `for j in 5: {for i in 4: for h in 2, if 0 <= i - h < 3: part[h] = max(part[h], x[i, j]);
    for h in 2: for w in 3, if 0 <= j - w < 3: y[h, w] = max(y[h, w], part[h])}`.
    """
    kernel, stage, (value,), (join,) = columns.kernel, columns.stage, columns.stage.values, columns.stage.joins
    lanes = sliding.lanes
    *rest, across = sliding.slides
    down = rest[0] if rest else replace(across, size=1, outputs=1)
    extents = sliding.shared(stage.reduced)
    patch, element = columns.in_vectors(lanes, int(size_of(extents))), kernel.element
    first = split_index(kernel.group * columns.plan.vector + element, kernel.domain.rows)
    first = {**first, **split_index(kernel.step, extents)}
    axis_values = kernel.domain.axis_values[columns.number]
    patch.values = {**first, **{axis: substitute(each, first) for axis, each in axis_values.items()}}
    term = patch.value(_inside(value, sliding) if kernel.domain.row_tests else value).astype(dtype)
    part = kernel.registers("part", down.outputs * lanes, dtype)
    parts = [part[line * lanes + element] for line in range(down.outputs)]
    results = [register[window * lanes + element] for window in range(sliding.outputs)]
    others = int(size_of(extents)) // (down.width * across.width)
    steps = list[tirx.Stmt]()
    for column in range(across.width):
        for line in range(down.width):
            numbers = [(other * down.width + line) * across.width + column for other in range(others)]
            terms = [substitute(term, {kernel.step: tirx.const(number, INDEX)}) for number in numbers]
            steps += _joined(down, line, terms, parts, join)
        for line, whole in enumerate(parts):
            steps += _joined(across, column, [whole], results[line * across.outputs :], join)
    # Loads begin in the middle of the first window, which is never padding: compilers compute other addresses from it.
    middle = 0
    for axis, extent in extents.items():
        middle = middle * int(extent) + int(stage.reduced[axis]) // 2
    copies = [substitute(copy, {kernel.step: (kernel.step + middle) % patch.at_once}) for copy in patch.copies()]
    loads = [loop(kernel.step, patch.at_once, sequence(copies))] if copies else []
    return [*loads, *(loop(element, lanes, step) for step in steps)]


def _inside(value: Expr, sliding: Sliding) -> Expr:
    """Clamp the indices of loads that no condition guards, so that windows of rows past the end read valid memory.

    Before: `x[h + r, w + s]`, with four windows in a row. After: `x[h + r, min(w + s, 24)]`.
    """
    inner, loads = {slide.inner for slide in sliding.slides}, list(loads_in(value))

    def inside(load: TensorLoad) -> Expr:
        conditions = next(conditions for each, conditions in loads if each.same_as(load))
        indices, analyzer = list[Expr](), Analyzer()
        with analyzer.constraint_scope(tirx.all(tirx.const(True), *conditions)):
            for index, extent in zip(load.indices, load.source.ty.shape, strict=True):
                is_there = not inner & variables_in([index]) or analyzer.can_prove(index < extent)
                indices.append(index if is_there else tirx.min(index, extent - 1))
        return load.source.vload(indices)

    return with_loads(value, inside)


def _joined(slide: Slide, index: int, terms: list[Expr], windows: list[TensorLoad], join: Join) -> list[tirx.Stmt]:
    """Return the statements that join the elements at an index to each of the first windows that contains the index.

    The first of two neighbouring windows gets the elements that they share from the second one, once that is complete.
    """
    steps = list[tirx.Stmt]()

    def put(window: TensorLoad, value: Expr) -> None:
        steps.append(tirx.BufferStore(window.source, value, window.indices))

    for output, window in zip(range(slide.outputs), windows, strict=False):
        begin = output * slide.step
        count = slide.step if output % 2 == 0 and output + 1 < slide.outputs else slide.size
        if begin <= index < begin + count:
            put(window, reduce(join, terms if index == begin else [window, *terms]))
    for output in range(0, slide.outputs - 1, 2):
        if index == output * slide.step + slide.size - 1:
            put(windows[output], join(windows[output], windows[output + 1]))
    return steps
