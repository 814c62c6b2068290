"""Open sizes, which are known only when a kernel runs: variables of TVM instead of a workload's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeVar, cast

import msgspec
from tvm import tirx
from tvm.sym.analyzer import Analyzer

from tvmconv.problem import OPEN_SIZES, Problem
from tvmconv.problem.fused import FusedWorkload
from tvmconv.problem.workload import ConvWorkload

VARIABLES = {name: tirx.Var(name, "int32") for name in OPEN_SIZES}
"""The variable for each size that can be open; all kernels share them."""

ROWS, COLUMNS = (tirx.Var(name, "int32") for name in ("rows", "columns"))
"""The height and the width of the output where those of the input are open.

A kernel gets them from its output's shape: computed from the input's, the expression would be in each index.
"""


class OpenWorkload(ConvWorkload, frozen=True, kw_only=True):
    """A workload with expressions of TVM among its sizes, for shapes and definitions; its fields are not checked."""

    def __post_init__(self) -> None:
        """Take the sizes as they are: those of the problem's workload were checked."""

    @property
    def output_size(self) -> tuple[int, int]:
        """The height and width of the output: `ROWS` and `COLUMNS` for the variables of an open height and width.

        Expressions of a model's sizes are simplified, as Relax has them: TVM compares shapes as they are written.
        """
        rows, columns = super().output_size
        if self.height is VARIABLES["batch"]:  # the rows of a linear layer, taken as the rows of one image
            return self.height, columns
        rows = ROWS if self.height is VARIABLES["height"] else _simplified(rows)
        return rows, COLUMNS if self.width is VARIABLES["width"] else _simplified(columns)


def _simplified(size: int | tirx.PrimExpr) -> int | tirx.PrimExpr:
    return size if isinstance(size, int) else Analyzer().simplify(size)


def with_open_sizes(problem: Problem) -> ConvWorkload:
    """Return the problem's workload, with a variable for each size that is known only when the kernel runs."""
    return with_sizes(problem.workload, {name: VARIABLES[name] for name in problem.open_sizes})


def whole_tiles(size: int | tirx.PrimExpr, step: int) -> int | tirx.PrimExpr:
    """Return the number of tiles of `step` elements that cover a size; the last one may reach beyond its end.

    For a height or width that is known only when the kernel runs it is a new variable. TVM cannot reason about the
    rounding: lowering replaces the variable when the computation is scheduled.
    """
    if size is VARIABLES["batch"]:  # in the form that TVM gives the extent of a loop that is split into tiles
        return (size + step - 1) // step
    return -(-size // step) if isinstance(size, int) else tirx.Var("tiles", "int32")


def in_tiles(size: int | tirx.PrimExpr, step: int) -> int | tirx.PrimExpr:
    """Return a size rounded up to a multiple of `step`."""
    return whole_tiles(size, step) * step


W = TypeVar("W", bound=ConvWorkload | FusedWorkload)


def with_sizes(workload: W, sizes: Mapping[str, tirx.PrimExpr]) -> W:
    """Return a workload, or a fused one with all its layers, with expressions for the named sizes."""
    if isinstance(workload, FusedWorkload):
        return workload.with_layers(lambda layer: with_sizes(layer, sizes))
    return cast(W, OpenWorkload(**{**msgspec.structs.asdict(workload), **sizes})) if sizes else workload


def is_whole(size: int | tirx.PrimExpr, step: int) -> bool:
    """Return whether a size is a multiple of a step, whatever value an open size in it gets."""
    return size % step == 0 if isinstance(size, int) else bool(Analyzer().can_prove_equal(size % step, 0))


def pixel_tiles(workload: ConvWorkload, step: int) -> int | tirx.PrimExpr:
    """Return the number of tiles of `step` pixels that cover the output pixels of all images.

    It has the form that TVM gives the extent of a loop that is split into tiles, so that TVM can prove them equal.
    """
    return (workload.batch * prod(workload.output_size) + step - 1) // step
