"""The steps of a thread of a sparse convolution, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx


@dataclass(frozen=True)
class Always:
    """A statement that does not depend on the weight."""

    stmt: tirx.Stmt


@dataclass(frozen=True)
class Staging:
    """A statement that stages a part of one input channel."""

    channel: int
    stmt: tirx.Stmt


@dataclass(frozen=True)
class PerOutput:
    """A statement for each output channel k, which reads its sums."""

    k: tirx.Var
    stmt: tirx.Stmt


@dataclass(frozen=True)
class Products:
    """One element of the input times the weight of every output channel.

    `sums[k * step + first] += element * weight[k, place]`, place counting c, r and s in one.
    """

    place: int
    element: tirx.PrimExpr
    first: int
    step: int


@dataclass(frozen=True)
class Loop:
    """Steps that a loop repeats, which stays one; the sums are zero at the beginning of each turn."""

    loop: tirx.For
    steps: tuple[Step, ...]


Step = Always | Staging | PerOutput | Products | Loop
