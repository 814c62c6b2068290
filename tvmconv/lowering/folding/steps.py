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
    """A statement for each output channel k, which reads that channel's sums."""

    k: tirx.Var
    stmt: tirx.Stmt


@dataclass(frozen=True)
class Products:
    """The products of one element of the input with the weights of all output channels.

    `sums[k * step + first] += element * weight[k, weight_index]`; `weight_index` is the row-major number of (c, r, s).
    """

    weight_index: int
    element: tirx.PrimExpr
    first: int
    step: int


@dataclass(frozen=True)
class Loop:
    """Steps in a loop that stays a loop; the sums are zero at the beginning of each iteration."""

    loop: tirx.For
    steps: tuple[Step, ...]


Step = Always | Staging | PerOutput | Products | Loop
