"""Depth to space: the channels of several phases that become the pixels of larger planes, in any layout.

To Relax these are two reshapes with a permutation of axes between them, and a slice where edges are cut off, which TVM
fuses with each other and with a concatenation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from tvm import relax, tirx

from tvmconv.problem.layout import channel_block, data_layout

from .constants import same_size, same_sizes, sizes_of
from .graph import Block, call_of

Size: TypeAlias = int | tirx.Expr


@dataclass(frozen=True)
class Interleaving:
    """Planes y[n, g * k, s * m + a - first] = x[n, (g, a, k), m], with all phases a of each spatial axis.

    The channels of x are the groups g, the phases and the channels k of a group, in this order from the outermost.
    """

    source: relax.Expr
    """The tensor x."""
    groups: int
    phases: tuple[int, ...]
    """The phases along each spatial axis."""
    planes: tuple[Size, ...]
    """The size of the planes of x."""
    first: tuple[int, ...]
    """The pixels that are cut off in front, along each spatial axis."""
    shape: tuple[Size, ...]
    """The shape of y."""

    @property
    def channels(self) -> int:
        """The channels of a group of y."""
        return int(self.shape[1]) // self.groups

    def expression(self, layout: str = "NCHW") -> relax.Expr:
        """Return the expression that computes y from x, both in a layout; one spatial axis is in NCW alone."""
        rank, block = len(self.phases), channel_block(layout)
        planes, phases = ([f"{letter}{axis}" for axis in range(rank)] for letter in "ma")
        pixels = [part for pair in zip(planes, phases, strict=True) for part in pair]
        if layout == "NHWC":
            given, wanted = ["n", *planes, "g", *phases, "k"], ["n", *pixels, "g", "k"]
        else:
            given, wanted = ["n", "g", *phases, "k", *planes, "b"], ["n", "g", "k", *pixels, "b"]
        n, channels, *outputs = self.shape
        sizes: dict[str, Size] = {"n": n, "g": self.groups, "k": self.channels // block, "b": block}
        sizes |= {**dict(zip(planes, self.planes, strict=True)), **dict(zip(phases, self.phases, strict=True))}
        if block == 1:
            given, wanted = ([part for part in order if part != "b"] for order in (given, wanted))
        whole = [size * each for size, each in zip(self.planes, self.phases, strict=True)]
        order = data_layout(layout)
        logical = (n, channels, *whole)
        split = relax.op.reshape(self.source, [sizes[part] for part in given])
        permuted = relax.op.permute_dims(split, [given.index(part) for part in wanted])
        y = relax.op.reshape(permuted, order.shape(logical) if rank == 2 else logical)
        if not any(self.first) and all(map(same_size, whole, outputs)):
            return y
        axes = order.spatial if rank == 2 else (2,)
        ends = [first + size for first, size in zip(self.first, outputs, strict=True)]
        return relax.op.strided_slice(y, axes, self.first, ends, assume_inbound=True)


ORDER = [0, 1, 4, 5, 2, 6, 3]
"""The order of the axes (N, g, a, b, k, H, W) in which the phases a and b come after rows and columns."""


def interleaving(var: relax.Var, block: Block) -> tuple[Interleaving, list[relax.Var]] | None:
    """Return the interleaving of channels (N, C, H, W) that a variable is, and the variables on the way to it.

    None for anything else, and where a variable on the way has another reader.
    """
    value, way = block.values[var], list[relax.Var]()

    def made_by(operand: relax.Expr, name: str) -> Any:
        found = call_of(block.values.get(operand), name)
        if found is None or block.only_reader(operand) is None:
            return None
        way.append(operand)
        return found

    cut = call_of(value, "strided_slice")
    first = (0, 0) if cut is None else _cut_in_front(cut)
    reshaped = call_of(value, "reshape") if cut is None else made_by(cut.args[0], "reshape")
    permuted = None if reshaped is None else made_by(reshaped.args[0], "permute_dims")
    split = None if permuted is None else made_by(permuted.args[0], "reshape")
    if first is None or reshaped is None or permuted is None or split is None:
        return None
    if [int(axis) for axis in permuted.attrs.axes or ()] != ORDER:
        return None
    n, *channels, height, width = sizes_of(split.ty) or ()
    if not all(isinstance(size, int) for size in channels):
        return None
    groups, rows, columns, each = map(int, channels)
    given, whole = (n, prod(channels), height, width), (n, groups * each, height * rows, width * columns)
    if not same_sizes(split.args[0].ty, given) or not same_sizes(reshaped.ty, whole):
        return None
    shape = sizes_of(var.ty) or ()
    return Interleaving(split.args[0], groups, (rows, columns), (height, width), first, shape), way


def _cut_in_front(cut: relax.Call) -> tuple[int, int] | None:
    """Return the rows and the columns that a slice cuts off in front; None where it does more than cut edges off."""
    axes, first, _, *strides = (list(each.fields) for each in cut.args[1:])
    if not all(isinstance(each, tirx.IntImm) for each in (*axes, *first)) or [int(axis) for axis in axes] != [2, 3]:
        return None
    if any(not isinstance(step, tirx.IntImm) or int(step) != 1 for steps in strides for step in steps):
        return None
    top, left = map(int, first)
    return top, left
