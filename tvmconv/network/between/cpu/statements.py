"""Loops and conditions of TIR, which are left out where constant sizes make them needless."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tvm import tirx
from tvm.ir import Expr, PrimType, Var
from tvm.sym import Analyzer
from tvm.tirx import ForKind


def index_of(value: int) -> Expr:
    """Return a constant index."""
    return tirx.const(value, "int64")


ZERO = index_of(0)


def is_number(number: Expr, value: int) -> bool:
    """Return whether an expression is a constant with a value."""
    return isinstance(number, tirx.IntImm) and int(number) == value


def loop(extent: Any, body: Callable[[Expr], tirx.Stmt], kind: ForKind = ForKind.SERIAL) -> tirx.Stmt:
    """Return a loop over the numbers below an extent; the body alone for one turn."""
    extent = Analyzer().simplify(index_of(extent) if isinstance(extent, int) else extent)
    if is_number(extent, 1):
        return body(ZERO)
    var = Var("turn", PrimType("int64"))
    return tirx.For(var, ZERO, extent, kind, body(var))


def vectors_of(count: int, lanes: int, body: Callable[[Expr], tirx.Stmt]) -> list[tirx.Stmt]:
    """Return statements for all indices below `count`, a multiple of `lanes`, each for a vector of them."""

    def vector(first: int) -> tirx.Stmt:
        return loop(lanes, lambda lane: body(lane + first if first else lane), ForKind.VECTORIZED)

    return [vector(first) for first in range(0, count, lanes)]


def loops_over(axes: Mapping[Var, Expr], body: Callable[[dict[Var, Expr]], tirx.Stmt]) -> tirx.Stmt:
    """Return loops over axes, the first one outermost, around a statement that `body` makes of their values."""
    if not axes:
        return body({})
    (axis, extent), *others = axes.items()
    return loop(extent, lambda value: loops_over(dict(others), lambda values: body({axis: value, **values})))


def choice(condition: Expr, *branches: Callable[[], tirx.Stmt]) -> list[tirx.Stmt]:
    """Return the statement for a condition with one or two branches; of a constant condition, its branch, or none."""
    condition = Analyzer().simplify(condition)
    if isinstance(condition, tirx.IntImm):
        return [branch() for branch in (branches[:1] if condition.value else branches[1:])]
    return [tirx.IfThenElse(condition, *(branch() for branch in branches), *[None][len(branches) - 1 :])]


def sequence(statements: Iterable[tirx.Stmt]) -> tirx.Stmt:
    """Return one or more statements as one statement."""
    return tirx.stmt_seq(*statements)
