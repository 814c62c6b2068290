"""The rows and columns of a GPU's kernel for stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.statements import INDEX, index_variable
from tvmconv.compute.substitution import substitute
from tvmconv.lowering.signatures import itemsize

from ..stages import Stage, is_contiguous_along, loads_in, stride, variables_in
from .plan import LINE, TILE, Axes, Domain, assumed, size_of, split_index

CHUNK = 4096
"""The most columns of a row, unless its reductions have more: of more columns it has chunks, and each chunk repeats the
reductions."""

AGAIN = 2
"""The most elements that repeated reductions may read for each element of the result."""

OPERANDS = 4
"""The most operands for which tiles in shared memory have twice the rows and columns."""

LEAST = 8
"""The fewest elements in a row for which a transposition goes through shared memory."""


def domain_of(stages: list[Stage]) -> Domain | None:
    """Return the rows and columns of a kernel for stages; None unless each row reads one result of each reduction."""
    *inner, last = stages
    targets = [target for stage in inner for target in stage.targets]
    axis_values: list[dict[Var, Expr]] = [{} for _ in stages]
    columns: list[Axes] = [stage.reduced for stage in stages]
    rows: dict[Var, Expr] = dict(last.outer)
    tests: list[Expr] = []
    if not inner and not last.is_reduction and (transposed := _transposed(last)) is not None:
        return transposed
    if inner and not last.is_reduction:
        split = _split(last, targets, [size_of(stage.reduced) for stage in inner])
        if split is None:
            return None
        rows, columns[-1], axis_values[-1], tests = split
    analyzer = Analyzer()
    for var, extent in (*rows.items(), *columns[-1].items()):
        analyzer.bind(var, Range(0, extent))
    readers = [(last, axis_values[-1])]
    for number in range(len(inner) - 1, -1, -1):
        stage = stages[number]
        found = None
        for reader, where in readers:
            for value in reader.values:
                for load, _ in loads_in(value):
                    if not any(load.source.same_as(target) for target in stage.targets):
                        continue
                    indices = [analyzer.simplify(substitute(index, where)) for index in load.indices]
                    if found is not None and not tvm_ffi.structural_equal(found, indices):
                        return None
                    found = indices
        if found is None:
            return None
        if not variables_in(found) <= set(rows) | _sizes(stages):
            return None
        for index, value in zip(stage.indices, found, strict=True):
            if isinstance(index, Var):
                axis_values[number][index] = value
        if set(axis_values[number]) != set(stage.outer):
            return None
        if not tests and not _is_worth(stage, size_of(rows), size_of(last.outer)):
            return None
        readers.append((stage, axis_values[number]))
    return Domain(rows, columns, axis_values, tests)


def _is_worth(stage: Stage, rows: Expr, elements: Expr) -> bool:
    """Return whether each row may compute a reduction: none is repeated, or they read few elements for each result."""
    if Analyzer().can_prove_equal(rows, size_of(stage.outer)):
        return True
    sizes = (rows, size_of(stage.reduced), elements)
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return False
    count, columns, total = map(int, sizes)
    return count * columns <= AGAIN * total


def _sizes(stages: list[Stage]) -> set[Var]:
    return {var for stage in stages for axes in (stage.outer, stage.reduced) for var in variables_in(axes.values())}


def _split(
    last: Stage, targets: list[Any], counts: list[Expr]
) -> tuple[dict[Var, Expr], dict[Var, Expr], dict[Var, Expr], list[Expr]] | None:
    """Return the axes of rows and of columns of a map that reads reductions, the map's axes in these terms, and tests.

    Rows are the axes in the indices of reductions' results. Columns are the other axes, in chunks if they have many
    more elements than are reduced.
    """
    indices = [
        index
        for value in last.values
        for load, _ in loads_in(value)
        if any(load.source.same_as(target) for target in targets)
        for index in load.indices
    ]
    rows, columns, axis_values = dict(last.outer), dict[Var, Expr](), dict[Var, Expr]()
    for axis, extent in last.outer.items():
        divisor = _divisor(axis, indices)
        if divisor == 0:
            columns[axis] = rows.pop(axis)
        elif divisor > 1 and isinstance(extent, tirx.IntImm) and int(extent) % divisor == 0:
            part, rest = (Var(f"{axis.name}_{name}", axis.ty) for name in ("part", "rest"))
            rows = {(part if var.same_as(axis) else var): size for var, size in rows.items()}
            rows[part] = tirx.const(int(extent) // divisor, axis.ty.dtype)
            columns[rest] = tirx.const(divisor, axis.ty.dtype)
            axis_values[axis] = part * divisor + rest
    analyzer, total = Analyzer(), size_of(columns)
    if not columns or any(analyzer.can_prove_equal(total, count) for count in counts):
        return rows, columns, axis_values, []
    known = [int(count) for count in counts if isinstance(count, tirx.IntImm)]
    size = max([CHUNK, *known])
    if isinstance(total, tirx.IntImm) and int(total) <= size:
        return rows, columns, axis_values, []
    if list(last.outer)[len(last.outer) - len(columns) :] != list(columns):  # not contiguous in memory
        return rows, columns, axis_values, []
    inner = assumed(list(columns.values())[-1])
    size = max(size // inner, 1) * inner if inner <= size else size  # whole rows, along which memory has vectors
    chunks, inside, whole, tests = _in_chunks(columns, size)
    rows = {**rows, **chunks}
    axis_values = {axis: substitute(value, whole) for axis, value in axis_values.items()}
    return rows, inside, {**axis_values, **{axis: whole[axis] for axis in columns if axis in last.outer}}, tests


def _in_chunks(columns: Axes, size: int) -> tuple[dict[Var, Expr], dict[Var, Expr], dict[Var, Expr], list[Expr]]:
    """Return the axis of chunks of columns, the axis of columns in a chunk, the old axes in these terms, and tests."""
    total, chunk, inside = size_of(columns), index_variable("chunk"), index_variable("inside")
    column = chunk * size + inside
    chunks = {chunk: Analyzer().simplify(tirx.ceildiv(total, size))}
    return chunks, {inside: tirx.const(size, INDEX)}, split_index(column, columns), [column < total]


def _transposed(stage: Stage) -> Domain | None:
    """Return the rows and columns of a map whose operand has another order of axes than its output.

    Columns are contiguous in the output, and the last axes of rows in the operand. None where either are few.
    """
    axes, loads = list(stage.outer), [each for value in stage.values for each in loads_in(value)]
    for load, conditions in loads:
        contiguous_axis = next((axis for axis in reversed(axes) if is_contiguous_along(load, axis)), None)
        if contiguous_axis is None or contiguous_axis is axes[-1] or axes[-1] not in variables_in(load.indices):
            continue
        if conditions and (len(loads) > 1 or contiguous_axis in variables_in(conditions)):
            continue
        split = axes.index(contiguous_axis) + 1
        rows, columns = ({axis: stage.outer[axis] for axis in part} for part in (axes[:split], axes[split:]))
        run = run_of(load, rows)
        count, tile = size_of(columns), tile_of([stage])
        if min(assumed(count), assumed(size_of(run))) < LEAST:
            return None
        if assumed(count) <= tile:
            return Domain(rows, [columns], [{}])
        if isinstance(count, tirx.IntImm):  # chunks of about the same size, in whole vectors
            tile = -(-int(count) // -(-int(count) // tile) // LEAST) * LEAST
        chunks, inside, axis_values, tests = _in_chunks(columns, tile)
        other_axes = {axis: extent for axis, extent in rows.items() if axis not in run}
        is_whole = Analyzer().can_prove_equal(tirx.floormod(count, tile), 0)
        return Domain({**other_axes, **chunks, **run}, [inside], [axis_values], [] if is_whole else tests)
    return None


def with_split_axes(stage: Stage) -> Stage:
    """Return a map with axes split in two where this makes it a transposition, as a reshape joins axes; or as it is.

    Before: `y[r, j] = x[r // 384, j, r % 384]`. After: `y[s * 384 + t, j] = x[s, j, t]`.
    """
    if stage.is_reduction or _transposed(stage) is not None:
        return stage
    axis_values, outer, analyzer = dict[Var, Expr](), dict[Var, Expr](), Analyzer()
    indices = [index for value in stage.values for load, _ in loads_in(value) for index in load.indices]
    for axis, extent in stage.outer.items():
        divisor = _divisor(axis, indices, (tirx.FloorDiv, tirx.FloorMod))
        if divisor < 2 or not isinstance(extent, tirx.IntImm) or int(extent) % divisor:
            outer[axis] = extent
            continue
        part, rest = (Var(f"{axis.name}_{name}", axis.ty) for name in ("part", "rest"))
        outer |= {part: tirx.const(int(extent) // divisor, axis.ty.dtype), rest: tirx.const(divisor, axis.ty.dtype)}
        axis_values[axis] = part * divisor + rest
    for axis, extent in outer.items():
        analyzer.bind(axis, Range(0, extent))

    def simplified(expr: Expr) -> Expr:
        return analyzer.simplify(substitute(expr, axis_values))

    split = replace(
        stage, outer=outer, values=[*map(simplified, stage.values)], indices=[*map(simplified, stage.indices)]
    )
    return stage if _transposed(split) is None else split


def run_of(load: TensorLoad, rows: Axes) -> dict[Var, Expr]:
    """Return the last axes of rows that are contiguous in an operand."""
    run, analyzer = dict[Var, Expr](), Analyzer()
    for axis, extent in reversed(list(rows.items())):
        if not analyzer.can_prove_equal(stride(load, axis), size_of(run)):
            break
        run = {axis: extent, **run}
    return run


def tile_of(stages: list[Stage]) -> int:
    """Return the number of rows and of columns of a tile of shared memory: up to a line of the cache both ways.

    They are fewer where shared memory has tiles of many operands.
    """
    loads = [load.source for stage in stages for value in stage.values for load, _ in loads_in(value)]
    widest = max(itemsize(each.ty.dtype) for each in (*loads, *(each for stage in stages for each in stage.targets)))
    return 2 * TILE if 2 * TILE * widest <= LINE and len(loads) <= OPERANDS else TILE


def _divisor(axis: Var, indices: list[Expr], kinds: tuple[Any, ...] = (tirx.FloorDiv,)) -> int:
    """Return the number that an axis is divided by in all indices: 0 if none has it, 1 if there are several or none.

    `kinds` are the divisions that count, perhaps remainders as well.
    """
    found: set[int] = set()

    def visit(expr: Any) -> None:
        if isinstance(expr, kinds) and expr.a.same_as(axis) and isinstance(expr.b, tirx.IntImm):
            found.add(int(expr.b))
        elif isinstance(expr, Var):
            found.update([1] if expr.same_as(axis) else [])
        else:
            for name in ("a", "b"):
                if hasattr(expr, name):
                    visit(getattr(expr, name))

    for index in indices:
        visit(index)
    return 0 if not found else found.pop() if len(found) == 1 else 1
