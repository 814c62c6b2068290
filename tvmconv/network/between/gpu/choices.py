"""Choices between operands by the index of an element, as in concatenations: which threads read which operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.statements import INDEX, index_variable
from tvmconv.compute.substitution import CHOICE, substitute
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets.devices import WARP

from ..stages import Stage, loads_in, parts_of
from .plan import Axes, Domain, Plan

NUMBERS = (tirx.FloatImm, tirx.IntImm)
"""The kinds of expressions that are numbers."""


class Choice(NamedTuple):
    """An element of one of several operands: of the first whose test holds, or else of the last."""

    value: Expr
    tests: list[Expr]
    """The tests of all operands but the last: where one of them holds, all after it hold, too."""
    operands: list[Expr]
    """The operands that are read; the last one may be a number, as for the padding around a tensor."""

    def statement(self, tests: Sequence[Expr], loads: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """Return the statement that runs the chosen one of some statements, by a binary search over the tests.

        Before: `if a: x`, `elif b: y`, `elif c: z`, `else: w`. After: `if b: (if a: x, else: y)`, `else: (if c: z,
        else: w)`.
        """
        if len(loads) == 1:
            return loads[0]
        half = len(loads) // 2
        first, second = self.statement(tests[: half - 1], loads[:half]), self.statement(tests[half:], loads[half:])
        return tirx.IfThenElse(tests[half - 1], first, second)


def choices_in(value: Expr, axes: Axes) -> list[Choice]:
    """Return the choices in a value whose operands are loads, or a number for the last; `axes` are those in tests."""
    if not isinstance(value, tvm.ir.Call) or not value.op.same_as(CHOICE):
        parts = [] if isinstance(value, TensorLoad) else parts_of(value)
        return [each for part in parts for each in choices_in(part, axes)]
    tests, operands, rest = list[Expr](), list[Expr](), value
    while isinstance(rest, tvm.ir.Call) and rest.op.same_as(CHOICE):
        test, first, rest = rest.args
        tests.append(test)
        operands.append(first)
    operands.append(rest)
    analyzer = Analyzer()
    for axis, extent in axes.items():
        analyzer.bind(axis, Range(0, extent))

    def follows(test: Expr, before: Expr) -> bool:
        with analyzer.constraint_scope(before):
            return bool(analyzer.can_prove(test))

    loads = operands[:-1] if isinstance(rest, NUMBERS) else operands
    if not all(map(_is_of_axes, loads)) or not all(follows(b, a) for a, b in pairwise(tests)):
        return []
    return [Choice(value, tests, operands)]


def with_casts_of_choices(value: Expr) -> Expr:
    """Return a value with casts of choices for choices between a cast and a number.

    Before: `if_then_else(1 <= h, float32(x[h - 1]), 0.0)`. After: `float32(if_then_else(1 <= h, x[h - 1], 0.0))`.
    """

    def known(call: tvm.ir.Call) -> Expr:
        if not call.op.same_as(CHOICE):
            return call
        test, first, second = call.args
        if not isinstance(first, tirx.Cast) or not isinstance(second, NUMBERS):
            return call
        dtype = str(first.value.ty.dtype)
        if not _has(dtype, second.value):
            return call
        return tirx.if_then_else(test, first.value, tirx.const(second.value, dtype)).astype(str(first.ty.dtype))

    return tvm_ffi.structural_map(value, (tvm.ir.Call, known))


def _has(dtype: str, number: float) -> bool:
    """Return whether a type represents a number exactly."""
    if dtype not in STORAGE_TYPES:
        return False
    with np.errstate(all="ignore"):
        return float(np.asarray(number).astype(STORAGE_TYPES[dtype].numpy)) == number


def _is_of_axes(value: Expr) -> bool:
    """Return whether a value is a load whose indices contain no load, as from a table."""
    return isinstance(value, TensorLoad) and not any(True for index in value.indices for _ in loads_in(index))


def with_warps_by_part(domain: Domain, stages: list[Stage], plan: Plan) -> Domain:
    """Return the domain with rows in such an order that a warp reads a single part of a concatenation.

    Before: rows (pixels, c), of parts of 64, 32 and 32 channels, in vectors of 8 channels. After: rows (pixels / 8,
    4, 8, 32): four neighbouring threads have 32 channels of a pixel, and the 32 of a warp those of eight pixels.
    """
    stage = stages[-1]
    if len(stages) > 1 or stage.is_reduction or plan.has_column_vectors or domain.columns[-1] or len(domain.rows) < 2:
        return domain
    *before, pixel, axis = domain.rows
    tests = [test for value in stage.values for each in choices_in(value, stage.outer) for test in each.tests]
    limits = [limit for test in tests if (limit := _limit(test, axis)) is not None]
    if not limits or len(limits) < len(tests) or not isinstance(domain.rows[axis], tirx.IntImm):
        return domain
    size = gcd(channels := int(domain.rows[axis]), *limits)
    together = WARP // gcd(WARP, size // plan.vector)
    while not Analyzer().can_prove_equal(tirx.floormod(domain.rows[pixel], together), 0):
        together //= 2
    if size % plan.vector or together == 1:
        return domain
    far, part, near, element = map(index_variable, ("far", "part", "near", "element"))
    rows = {
        **{each: domain.rows[each] for each in before},
        far: Analyzer().simplify(tirx.floordiv(domain.rows[pixel], together)),
        part: tirx.const(channels // size, INDEX),
        near: tirx.const(together, INDEX),
        element: tirx.const(size, INDEX),
    }
    whole = {pixel: far * together + near, axis: part * size + element}
    axis_values = {each: substitute(value, whole) for each, value in domain.axis_values[0].items()}
    return replace(domain, rows=rows, axis_values=[axis_values | whole])


def _limit(test: Expr, axis: Var) -> int | None:
    """Return the number that a test compares an axis with; None for any other test."""
    if isinstance(test, (tirx.LE, tirx.LT)):
        limit, value = (test.a, test.b) if isinstance(test, tirx.LE) else (test.b, test.a)
        if isinstance(limit, tirx.IntImm) and value.same_as(axis):
            return int(limit)
    return None
