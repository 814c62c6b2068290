"""Tensor intrinsics: what one computes, in plain loops, and its code in vectors, whose values have names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import PrimFunc
from tvm.tirx.script import builder as T  # noqa: N812

Bind = Callable[["tirx.PrimExpr"], tirx.Var]
"""A function that gives a value a name, so that it is computed once."""


Element = Callable[..., tuple[Sequence[Any], "tirx.PrimExpr"]]
"""A function of the values of loops that returns the indices of an element of the result, and its value."""


def description(operands: Sequence[tirx.Buffer], extents: Sequence[int], kinds: str, element: Element) -> PrimFunc:
    """Return what an intrinsic computes, in loops of these extents; the last operand is its result.

    A loop is over elements of the result, "S" among the kinds, or over terms of its sums, "R". This is what the script
    `@T.prim_func` would be parsed to: its parser takes ten times as long, and reads the source of all its callers.
    """
    *read, written = operands
    read = [written, *read] if "R" in kinds else read
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("description")
        for operand in operands:
            T.arg(operand.name, operand)
        with T.sblock("root"):
            T.reads(*map(_whole, read))
            T.writes(_whole(written))
            with T.grid(*extents) as loops, T.sblock("element"):
                index, value = element(*T.axis.remap(kinds, loops))
                T.buffer_store(written, value, index)
    return builder.get()


def _whole(operand: tirx.Buffer) -> Any:
    return operand[tuple(slice(0, extent) for extent in operand.ty.shape)]


class VectorCode:
    """Statements in the order in which they are added."""

    def __init__(self, vector_type: str) -> None:
        """Start with none; all values with names are of one type, such as "float32x16"."""
        self.vector_type = vector_type
        self.statements: list[tirx.Stmt] = []

    def bind(self, value: tirx.PrimExpr) -> tirx.Var:
        """Give a value a name."""
        vector = tirx.Var("vector", self.vector_type)
        self.statements.append(tirx.Bind(vector, value))
        return vector

    def implementing(self, description: PrimFunc) -> PrimFunc:
        """Return the function with the statements instead of its loops."""
        return implementation(description, tirx.SeqStmt(self.statements))


def implementation(description: PrimFunc, code: tirx.Stmt) -> PrimFunc:
    """Return the description of an intrinsic with its code instead of its loops."""
    root = description.body.block
    body = SBlock([], root.reads, root.writes, root.name_hint, code)
    return PrimFunc(description.params, SBlockRealize([], True, body))
