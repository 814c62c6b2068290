"""Axes of a reduction along which vectors run: those of rows that are reduced, or of columns that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..stages import Stage, flat_index, loads_in, step_of, variables_in, with_loads
from ..vector_code import LEAST_LANES
from .statements import is_number


@dataclass(frozen=True)
class Flat:
    """Axes that are contiguous in all tensors of a reduction, as one axis."""

    axis: Var
    """The last of the axes; its index runs on beyond its end, into the next row."""
    count: Expr
    """The number of elements of all the axes."""
    zeros: tuple[Var, ...]
    """The axes before `axis` among them, whose index stays 0."""
    others: dict[Var, Expr]
    """All other axes, with their extents."""

    def at(self, index: Expr) -> dict[Var, Expr]:
        """Return the values of the axes for an element."""
        return {self.axis: index, **{axis: tirx.const(0, axis.ty.dtype) for axis in self.zeros}}


def column_of(stage: Stage) -> Flat | None:
    """Return the last axes of the outputs of a reduction of columns, as far as outputs and loads are contiguous.

    None for a reduction of rows: its elements for one output are neighbours, but not those for two outputs.
    """
    if not stage.outer:
        return None
    *_, column = stage.outer
    target = stage.targets[0][tuple(stage.indices)]
    loads = _loads(stage)
    steps = [_step(load, column) for load in loads]
    if not all(is_number(step, 0) or is_number(step, 1) for step in steps) or not any(
        is_number(step, 1) for step in steps
    ):
        return None
    if not is_number(_step(target, column), 1) or any(
        is_number(_step(load, axis), 1) for load in loads for axis in stage.reduced
    ):
        return None
    return _flat(column, stage.outer, [target, *loads], stage.values[0])


def row_of(stage: Stage) -> Flat:
    """Return the reduced axes along which vectors of a reduction of rows run."""
    loads = _loads(stage)
    contiguous = [axis for axis in stage.reduced if any(is_number(_step(load, axis), 1) for load in loads)]
    return _flat((contiguous or list(stage.reduced))[-1], stage.reduced, loads, stage.values[0])


def row_lanes(stage: Stage, lanes: int) -> int:
    """Return the number of lanes for a reduction of a row, with vectors of some float32 lanes; 1 for a short row."""
    lanes, count = lanes_of(str(stage.targets[0].ty.dtype), lanes), row_of(stage).count
    while isinstance(count, tirx.IntImm) and lanes > int(count):
        lanes //= 2
    return lanes if lanes >= LEAST_LANES else 1


def lanes_of(dtype: str, lanes: int) -> int:
    """Return the number of elements in vectors that have some lanes of float32."""
    return lanes * 4 // int(tvm.DataType(dtype).itemsize)


def _flat(axis: Var, axes: Mapping[Var, Expr], loads: Iterable[TensorLoad], term: Expr) -> Flat:
    """Return an axis joined with the axes that continue it in memory; `term` may have these in its indices alone."""
    others, zeros, analyzer = dict(axes), [], Analyzer()
    count = others.pop(axis)
    steps = [(_step(load, axis), load) for load in loads]
    needed = variables_in([with_loads(term, lambda load: tirx.const(0, str(load.ty.dtype)))])

    def continues(other: Var) -> bool:
        return not {axis, other} & needed and all(
            analyzer.can_prove_equal(_step(load, other), count * step) for step, load in steps
        )

    while (found := next(filter(continues, reversed(others)), None)) is not None:
        zeros.append(found)
        count = count * others.pop(found)
    return Flat(axis, analyzer.simplify(count), tuple(zeros), others)


def _loads(stage: Stage) -> list[TensorLoad]:
    return [load for load, _ in loads_in(stage.values[0])]


def _step(load: TensorLoad, axis: Var) -> Expr:
    return step_of(flat_index(load.source, load.indices), axis, Analyzer())
