"""The knobs of attention on the tensor cores of a GPU, and sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tvmconv.problem import Problem
from tvmconv.problem.fused.attention import ROW_BYTES, Attention
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to
from ..machine import REGISTERS
from ..tensor.tiles import tf32_products
from .fragments import FRAGMENT

COPY_BYTES = ROW_BYTES
"""The bytes of a copy to shared memory."""

KEYS = 64
"""The number of keys in a tile; a thread has their scores in registers."""

OTHER_REGISTERS, BIAS_REGISTERS = 64, 8
"""The registers of a thread besides those of queries, scores and sums, and the registers for each bias."""


def attention_of(problem: Problem) -> Attention:
    """Return the workload of a problem of attention."""
    assert isinstance(problem.workload, Attention)
    return problem.workload


def tf32_parts_of(problem: Problem) -> int:
    """Return the number of TF32 numbers for a float32 factor: the nearest one, or two that add up to it."""
    return 2 if tf32_products(problem) == 3 else 1


def vector(attention: Attention) -> int:
    """Return the number of elements of a copy to shared memory."""
    return COPY_BYTES // attention.itemsize


def pitch(attention: Attention, columns: int) -> int:
    """Return the elements from a row of `columns` in shared memory to the next.

    That is an odd number of copies, so that simultaneous reads are in different banks: one copy of each of eight rows,
    or two copies of every other row.
    """
    return (padded(columns) // vector(attention) | 1) * vector(attention)


@dataclass(frozen=True)
class Config:
    """The knobs: the part of attention that a block computes, a tile of keys at a time."""

    fragments: int
    """The number of fragments of sixteen queries of a warp."""
    stages: int
    """The number of turns whose keys and values fit in shared memory: 1 if there are no more turns, else 2 or more."""
    keys: int = KEYS
    """The number of keys of a warp in a turn."""
    warps: int = 4
    """The number of warps with different queries."""
    splits: int = 1
    """The number of warps that share queries: each has other keys in a turn, and in the end their sums are added."""

    @property
    def queries(self) -> int:
        return self.warps * self.fragments * FRAGMENT

    @property
    def turn(self) -> int:
        """The number of keys of a turn."""
        return self.keys * self.splits

    @property
    def threads(self) -> int:
        return self.warps * self.splits * WARP


def stage_bytes(attention: Attention, tile: Config) -> int:
    """Return the bytes of the keys and values of a turn in shared memory."""
    rows = pitch(attention, attention.depth) + pitch(attention, attention.width)
    return attention.itemsize * tile.turn * rows


def split_bytes(attention: Attention, tile: Config) -> int:
    """Return the bytes of sums in shared memory: of all warps that share queries, except the first of each group."""
    return 4 * WARP * tile.warps * (tile.splits - 1) * split_size(attention, tile)


def split_size(attention: Attention, tile: Config) -> int:
    """Return the count of a thread's sums, and of the largest score and the sum of powers of its rows."""
    return tile.fragments * (padded(attention.width) // 2 + 4)


def shared_bytes(attention: Attention, tile: Config) -> int:
    """Return the bytes of shared memory of a block; in the end sums reuse the memory of keys and values."""
    return max(tile.stages * stage_bytes(attention, tile), split_bytes(attention, tile))


def registers_of(problem: Problem, tile: Config) -> int:
    """Return the registers that a thread takes if nothing is spilled: for queries, scores, sums and addresses."""
    attention = attention_of(problem)
    registers = tf32_parts_of(problem) * tile.keys // 2 + padded(attention.width) // 2
    registers += padded(attention.depth) * attention.itemsize // 8
    return tile.fragments * registers + OTHER_REGISTERS + BIAS_REGISTERS * len(attention.biases)


def least_resident(problem: Problem, tile: Config) -> int:
    """Return the number of blocks that are to share the registers of a multiprocessor, so that nothing is spilled."""
    return max(1, REGISTERS // (tile.threads * registers_of(problem, tile)))


def turns_of(attention: Attention, tile: Config) -> int:
    """Return the number of turns of a block over all keys."""
    return ceil_div(attention.keys, tile.turn)


def padded(size: int) -> int:
    """Return a number of columns rounded up to whole fragments; those past the end are zeros."""
    return ceil_to(size, FRAGMENT)
