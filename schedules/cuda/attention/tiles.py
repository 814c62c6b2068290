"""Attention on the tensor cores of a GPU, and the part of it that a block computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.problem.places import Place
from tvmconv.targets.devices import Gpu

from ..machine import BLOCK_BYTES, REGISTERS, WARP
from ..tensor.model import L2_BYTES, mostly_largest
from .fragments import FRAGMENT

COPY_BYTES = 16
"""The bytes of a copy to shared memory."""

MOST_DEPTH = 128
"""The most terms of a score, and the most columns of values: a thread has a row's in registers."""

KEYS = 64
"""The keys of a tile, of which a thread has the scores in registers."""

WARPS = 4
"""The warps of a block, each of which has queries of its own."""

STAGES = 2
"""The turns whose keys and values are in shared memory: one is copied while the other is computed with.

With three, attention of ViT-S took 15.3 µs at batch 32 on an H100 where it takes 14.8, and 53.1 at batch 128 for 53.7.
"""

OTHER_REGISTERS, BIAS_REGISTERS = 64, 8
"""The registers of a thread beside those of queries, scores and sums, and those for each bias."""


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
    parts: int = 1
    """The TF32 numbers that a float32 factor is taken for: the nearest one, or two that add up to it."""

    @property
    def itemsize(self) -> int:
        """The bytes of a factor's element."""
        return STORAGE_TYPES[self.dtype].itemsize

    @property
    def vector(self) -> int:
        """The elements of a copy to shared memory."""
        return vector(self.dtype)

    @property
    def terms(self) -> int:
        """The terms that an instruction adds up, which are 32 bytes."""
        return 2 * self.vector

    def pitch(self, columns: int) -> int:
        """Return the elements from a row of so many in shared memory to the next.

        Those are an odd number of copies. So what is read at once is in different banks: a copy of eight rows each, or
        two of every other one of them.
        """
        return (padded(columns) // self.vector | 1) * self.vector

    @property
    def queries(self) -> int:
        return self.q.rows

    @property
    def keys(self) -> int:
        return self.k.rows


def vector(dtype: str) -> int:
    """Return the elements of a type in a copy to shared memory."""
    return COPY_BYTES // STORAGE_TYPES[dtype].itemsize


@dataclass(frozen=True)
class Tile:
    """The part of attention that a block computes, a tile of keys at a time."""

    fragments: int
    """The fragments of sixteen queries of a warp."""
    stages: int
    """The turns whose keys and values shared memory has room for: one, if there are no more, or from two on."""
    keys: int = KEYS
    """The keys of a warp in a turn."""
    warps: int = WARPS
    """The warps with queries of their own."""
    splits: int = 1
    """The warps that share queries: each has keys of its own in a turn, and in the end their sums are added."""

    @property
    def queries(self) -> int:
        return self.warps * self.fragments * FRAGMENT

    @property
    def turn(self) -> int:
        """The keys of a turn."""
        return self.keys * self.splits

    @property
    def threads(self) -> int:
        return self.warps * self.splits * WARP


def tile_for(attention: Attention, gpu: Gpu) -> Tile:
    """Return the tile that is estimated to take the least time on a GPU.

    Where there are few blocks warps share queries. Where there are many, of small rows in half precision, warps have
    two fragments. With long rows in float32 tiles have fewer keys, for which there are registers.
    """
    shapes, keys = [(1, 4, 1), (1, 2, 2), (1, 1, 4)], KEYS
    is_wide = max(attention.depth, attention.width) > MOST_DEPTH // 2
    if attention.dtype not in NARROW:
        keys = KEYS // 2 if is_wide else KEYS
    elif not is_wide:
        shapes.append((2, 4, 1))
    tried = []
    for fragments, warps, splits in shapes:
        turns = -(-attention.keys // (keys * splits))
        tried.append(Tile(fragments, min(STAGES, turns), keys, warps, splits))
    fitting = [tile for tile in tried if shared_bytes(attention, tile) + BLOCK_BYTES <= gpu.shared_bytes]
    return min(fitting, key=lambda tile: estimate(attention, tile, gpu))


class Clocks(NamedTuple):
    """The clocks of parts of a kernel, for a fragment and `KEYS` keys of 64 elements."""

    latency: float
    """The clocks of a block until its first keys have come."""
    step: float
    """The clocks of a warp that computes alone."""
    busy: float
    """The clocks of a quarter of a multiprocessor where other warps have work meanwhile."""
    busy_with_two: float
    """The same for each of two fragments that read the same keys."""


CLOCKS = {
    (2, 1): Clocks(1000.0, 1100.0, 1170.0, 1130.0),
    (4, 1): Clocks(3000.0, 3300.0, 2700.0, 2700.0),
    (4, 2): Clocks(4300.0, 3600.0, 4100.0, 4100.0),
}
"""The clocks by the bytes of a factor's element and the parts that it is taken for. They are fitted to tiles of ViT-S's
attention on an H100, in float16 to eighteen each at batch 1 to 128, and in float32 to three."""

MERGING = 500.0
"""The clocks in which the sums of a warp are added to those of another one that shares its queries, twice as many of
each block after the first."""


def estimate(attention: Attention, tile: Tile, gpu: Gpu) -> float:
    """Return the clocks that the kernel should take.

    Three things bound it: the units of the busiest multiprocessor, the blocks that have to wait for one another, and
    the keys and values that each block reads from the L2 cache.
    """
    whole, rest = divmod(attention.keys, tile.turn)
    keys = whole * tile.keys + min(padded(rest), tile.keys)
    size = tile.fragments * keys / KEYS * (padded(attention.depth) + padded(attention.width)) / 128
    rounds = -(-attention.matrices * -(-attention.queries // tile.queries) // gpu.multiprocessors)
    by_shared = gpu.shared_bytes // (shared_bytes(attention, tile) + BLOCK_BYTES)
    together = min(rounds, resident_blocks(attention, tile), by_shared)
    clocks = CLOCKS[attention.itemsize, attention.parts]
    busy = clocks.busy if tile.fragments == 1 else clocks.busy_with_two
    merging = (tile.splits - 1) * MERGING
    waiting = -(-rounds // together) * (clocks.latency + size * clocks.step + merging)
    units = rounds * tile.warps * tile.splits / 4 * size * busy + (rounds - 1) * 2 * merging
    read = rounds * attention.keys * attention.itemsize * (attention.depth + attention.width) / L2_BYTES
    return mostly_largest(units, waiting, read)


def stage_bytes(attention: Attention, tile: Tile) -> int:
    """Return the bytes of the keys and values of a turn in shared memory."""
    rows = attention.pitch(attention.depth) + attention.pitch(attention.width)
    return attention.itemsize * tile.turn * rows


def part_bytes(attention: Attention, tile: Tile) -> int:
    """Return the bytes of the sums in shared memory of warps that share queries, but for the first of each."""
    return 4 * WARP * tile.warps * (tile.splits - 1) * part_size(attention, tile)


def part_size(attention: Attention, tile: Tile) -> int:
    """Return the numbers of a thread's sums, and of the largest score and the sum of powers of its rows."""
    return tile.fragments * (padded(attention.width) // 2 + 4)


def shared_bytes(attention: Attention, tile: Tile) -> int:
    """Return the bytes of shared memory of a block; sums come where keys and values were."""
    return max(tile.stages * stage_bytes(attention, tile), part_bytes(attention, tile))


def resident_blocks(attention: Attention, tile: Tile) -> int:
    """Return the blocks that are to share the registers of a multiprocessor, so that nothing is spilled."""
    kept = attention.parts * tile.keys // 2 + padded(attention.width) // 2
    kept += padded(attention.depth) * attention.itemsize // 8
    registers = tile.fragments * kept + OTHER_REGISTERS + BIAS_REGISTERS * len(attention.biases)
    return max(1, REGISTERS // (tile.threads * registers))


def padded(size: int) -> int:
    """Return a number of columns with zeros behind them, up to whole fragments."""
    return -(-size // FRAGMENT) * FRAGMENT
