"""The code of tensor intrinsics in vectors: statements one after the other, whose values have names."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

Bind = Callable[["tirx.PrimExpr"], tirx.Var]
"""A function that gives a value a name, so that it is computed once."""


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
        """Return the function with the statements in the place of its loops."""
        return implementation(description, tirx.SeqStmt(self.statements))


def implementation(description: PrimFunc, code: tirx.Stmt) -> PrimFunc:
    """Return the description of an intrinsic with its code in the place of its loops."""
    root = description.body.block
    body = SBlock([], root.reads, root.writes, root.name_hint, code)
    return PrimFunc(description.params, SBlockRealize([], True, body))
