"""Attention in half precision on a GPU, and the part of it that a block computes."""

from __future__ import annotations

from dataclasses import dataclass

from ...lowering import Place
from ...schedules.cuda.machine import BLOCK_BYTES, REGISTERS, WARP
from ...targets.devices import Gpu
from .fragments import FRAGMENT

VECTOR = 8
"""The numbers of a copy to shared memory, of 16 bytes."""

MOST_DEPTH = 128
"""The most terms of a score, and the most columns of values: a thread has a row's in registers."""

KEYS = 64
"""The keys of a tile, of which a thread has the scores in registers."""

WARPS = 4
"""The warps of a block, each of which has queries of its own."""

OTHER_REGISTERS = 64
"""The registers of a thread beside those of queries, scores and sums."""


@dataclass(frozen=True)
class Attention:
    """Attention of several matrices: softmax(q k^T * scale + biases) v for each, of rows that lie in other tensors."""

    matrices: int
    depth: int
    """The terms of a score."""
    width: int
    """The columns of values and results."""
    dtype: str
    out_dtype: str
    scale: float
    q: Place
    k: Place
    v: Place
    output: Place
    biases: tuple[Place, ...] = ()
    """The rows of float32 numbers that are added to scores: for each query, one number for each key."""
    safe: bool = False
    """True if results are zeros where all scores are -inf; else they are NaN there."""

    @property
    def queries(self) -> int:
        return self.q.rows

    @property
    def keys(self) -> int:
        return self.k.rows


@dataclass(frozen=True)
class Tile:
    """The part of attention that a block computes."""

    fragments: int
    """The fragments of sixteen queries of a warp."""
    stages: int
    """The tiles of keys and values in shared memory."""
    keys: int = KEYS
    warps: int = WARPS

    @property
    def queries(self) -> int:
        return self.warps * self.fragments * FRAGMENT


def tile_for(attention: Attention, gpu: Gpu) -> Tile:
    """Return the tile for a GPU.

    Warps with two fragments read keys and values half as often; they take twice the registers, and half the blocks.
    """
    room = gpu.shared_bytes // 4 - BLOCK_BYTES
    stages = 3 if 3 * stage_bytes(attention, KEYS) <= room else 2
    wide = Tile(2, stages)
    blocks = attention.matrices * -(-attention.queries // wide.queries)
    fits = max(attention.depth, attention.width) <= MOST_DEPTH // 2
    return wide if fits and blocks >= 4 * gpu.multiprocessors else Tile(1, stages)


def stage_bytes(attention: Attention, keys: int) -> int:
    """Return the bytes of shared memory of a tile of keys and values."""
    return 2 * keys * (pitch(attention.depth) + pitch(attention.width))


def resident_blocks(attention: Attention, tile: Tile) -> int:
    """Return the blocks that are to share the registers of a multiprocessor, so that nothing is spilled."""
    kept = tile.keys // 2 + padded(attention.width) // 2 + padded(attention.depth) // 4
    registers = tile.fragments * kept + OTHER_REGISTERS
    return max(1, REGISTERS // (tile.warps * WARP * registers))


def padded(size: int) -> int:
    """Return a number of columns with zeros behind them, up to whole fragments."""
    return -(-size // FRAGMENT) * FRAGMENT


def pitch(columns: int) -> int:
    """Return the numbers from a row in shared memory to the next.

    Those are an odd number of copies: eight rows, which are read at once, are in different banks.
    """
    return (padded(columns) // VECTOR | 1) * VECTOR
